"""The workloads FlatTransformer, HierarchicalTransformer and DeepSet, from pulses to directions."""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from crpipe.author import Metric, OptimizerSpec, Workload
from crpipe.workloads.direction.layout import (
    PULSE,
    TRUTH,
    azimuth_zenith,
    opening_angle,
    read_geometry,
    unit_vectors,
)
from crpipe.workloads.direction.models import model as losses
from crpipe.workloads.direction.models.grouping import (
    Features,
    extended,
    group_by_sensor,
    padded_arrays,
    pulse_arrays,
)
from crpipe.workloads.direction.models.model import (
    DirectionModel,
    EventTransformer,
    PulseEncoder,
    SensorDeepSet,
    SensorTransformer,
    entrance,
)
from crpipe.workloads.direction.options import (
    DeepSetOptions,
    FlatTransformerOptions,
    HierarchicalTransformerOptions,
)
from crpipe.workloads.direction.scoring.line_fit import line_fit
from crpipe.workloads.direction.scoring.metrics import KAPPA_METRICS, METRICS, calibration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.campaign.records import Tables
    from crpipe.events.batch import Events
    from crpipe.inference.card import Provenance
    from crpipe.inference.export import Graphs
    from crpipe.train.workload import Batch, Columns, Measured, Metrics
    from crpipe.workloads.direction.models.grouping import DomVectors

Options = TypeVar("Options", bound=FlatTransformerOptions | HierarchicalTransformerOptions | DeepSetOptions)
SHOWN = 16  # pulses of a sensor in the summary of an event, where a model sees more of them


class DirectionWorkload(Workload, Generic[Options]):
    """Everything but the network."""

    options: Options
    event_columns = tuple(field.name for field in TRUTH)
    item_columns = tuple(field.name for field in PULSE)
    needs = ("geometry",)
    fit_events = 20_000
    validation_metrics = (
        Metric("angle_deg", "opening angle", unit="°", ideal=0.0),
        Metric("z_bias", "predicted minus true z", better="near", ideal=0.0),
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.optimizer = OptimizerSpec("adam", options.learning_rate, weight_decay=options.weight_decay)
        has_kappa = options.loss == "von_mises_fisher"
        self.metrics = METRICS + KAPPA_METRICS * has_kappa
        self.calibration_events = 5000 * has_kappa
        self.places: NDArray[np.float32] = np.zeros((0, 3), np.float32)
        self._model: DirectionModel | None = None

    def use(self, tables: Tables) -> None:
        """Read where the sensors are."""
        self.places = read_geometry(tables["geometry"])

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Count at most how many sensors of each event enter the network: [N]."""
        return np.clip(events.multiplicity, 1, self.options.max_doms)

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Group the pulses by sensor; the events with most sensors come first.

        With P pulses on D sensors of B events: start [B], hit [B], sensor [D], many [D],
        pulse [P, 4], slot [P] as in DomVectors; event [D] of each sensor; rows_0, rows_1 ...: [E, L] sensors
        of the events of each padded group, the first ``kept`` [B] of an event are its own; truth [B, 3] unit
        vectors, turned by ``turn`` [B] about the vertical axis; order [B] where each event is in ``index``;
        cut [3]: share of padding, of pulses and of sensors that are left out. counts: [B] 1, or 0 for
        padding, which follows the events (see grouping.padded_arrays).
        """
        part = events.take(index)
        doms = group_by_sensor(part, self.options.pulses_per_dom, self.options.max_doms)
        arrays = self.arrays(doms)
        turn = np.zeros(len(part))
        if self.options.rotate and seed:
            turn = np.random.default_rng(seed).uniform(0, 2 * np.pi, len(part))
        azimuth = part.columns["azimuth"][doms.order] + turn
        truth = unit_vectors(azimuth, part.columns["zenith"][doms.order])
        rows = sum(array.size for name, array in arrays.items() if name.startswith("rows_"))
        padding = 1 - doms.count.sum() / max(rows, 1)
        arrays |= {
            "turn": extended(turn.astype(np.float32), len(arrays["counts"])),
            "truth": extended(truth.astype(np.float32), len(arrays["counts"])),
            "cut": np.array([padding, doms.pulses_cut, doms.doms_cut], np.float32),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrays(self, doms: DomVectors) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of a batch, without its truth."""
        return padded_arrays(doms, self.options.pulses_per_dom, self.options.max_doms)

    def encoder(self) -> PulseEncoder | None:
        """Build what gives the network more features of each sensor; most have none."""

    @abc.abstractmethod
    def network(self, features: int) -> nn.Module:
        """Build the network over padded groups: ([E, L, features], [E, L]) to [E, 3]."""

    def model(self) -> DirectionModel:
        """Build features and network."""
        absolute, most, encoder = self.options.time == "absolute", self.options.pulses_per_dom, self.encoder()
        shown = min(most, SHOWN) if encoder else most
        features = Features(torch.from_numpy(self.places), most, shown, absolute=absolute)
        self._model = DirectionModel(features, self.network(features.width), encoder)
        return self._model

    def fit(self, model: DirectionModel, blocks: Iterable[Events]) -> None:
        """Fit the regression, from which the network begins."""
        summaries, truth = [], []
        for number, events in enumerate(blocks):
            batch = self.on_device(model, events, (number,))
            kept = batch["counts"] * batch["hit"] > 0
            summaries.append(model.summaries(batch, batch["turn"])[kept])
            truth.append(batch["truth"][kept])
        if summaries:
            model.regression.fit(torch.cat(summaries), torch.cat(truth))

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Metrics]:  # noqa: ARG002
        """Compare predicted and true directions of a batch."""
        vectors, truth, counts = model(batch, batch["turn"]), batch["truth"], batch["counts"]
        angle = losses.mean(losses.opening_angle(vectors, truth), counts)
        padding, pulses_cut, doms_cut = batch["cut"].unbind()
        shown = {
            "angle_deg": angle.detach().rad2deg(),
            "padding": padding,
            "pulses_cut": pulses_cut,
            "doms_cut": doms_cut,
        }
        if self.options.loss == "angle":
            return angle, shown
        shown["kappa"] = losses.mean(losses.length(vectors.detach())[:, 0], counts)
        return losses.mean(losses.von_mises_fisher(vectors, truth), counts), shown

    def vectors(
        self, model: DirectionModel, events: Events, turns: int, *, of_regression: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Predict the mean vector over some turns, [N, 3], not calibrated, and count the sensors hit, [N]."""
        batch = self.on_device(model, events)
        predicted = model.estimates if of_regression else model
        mean = torch.zeros_like(batch["truth"])
        for number in range(turns):
            angle = 2 * math.pi * number / turns
            turned = predicted(batch, torch.full_like(batch["turn"], angle))
            mean += turned_back(turned, angle) / turns
        vectors, hit = np.empty((len(events), 3)), np.empty(len(events), np.int64)
        order = batch["order"][: len(events)].cpu().numpy()
        vectors[order] = mean[: len(events)].cpu().numpy()
        hit[order] = batch["hit"][: len(events)].cpu().numpy()
        return vectors, hit

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Predict directions, with those of the regression and of the line fit beside them."""
        assert isinstance(model, DirectionModel)
        vectors, hit = self.vectors(model, events, self.options.rotations)
        azimuth, zenith = azimuth_zenith(vectors)
        columns: Columns = {"azimuth": azimuth, "zenith": zenith}
        if self.options.loss == "von_mises_fisher":
            columns["kappa"] = _kappa(model, np.linalg.norm(vectors, axis=1))
        columns["doms"] = hit
        fit = line_fit(events, self.places)
        columns["line_fit_azimuth"], columns["line_fit_zenith"] = fit
        regression = self._estimates(model, events, fit)
        return columns | {f"baseline_{name}": values for name, values in regression.items()}

    def baseline(self, events: Events) -> Columns:
        """Reconstruct by the regression alone, as ``fit`` left it in the model."""
        with torch.no_grad():
            return self._estimates(self._model or self.model(), events, line_fit(events, self.places))

    def _estimates(
        self, model: DirectionModel, events: Events, fit: tuple[NDArray[np.float64], NDArray[np.float64]]
    ) -> Columns:
        """Predict by the regression; where it says nothing, because it learned nothing, by the line fit."""
        vectors, _ = self.vectors(model, events, 1, of_regression=True)
        azimuth, zenith = azimuth_zenith(vectors)
        known = np.abs(vectors).max(axis=1, initial=0) > 0
        return {"azimuth": np.where(known, azimuth, fit[0]), "zenith": np.where(known, zenith, fit[1])}

    def validate(self, model: DirectionModel, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Measure the angle to the truth, in degrees, and the bias in z: [N] each."""
        vectors, _ = self.vectors(model, events, 1)
        truth = unit_vectors(events.columns["azimuth"], events.columns["zenith"])
        lengths = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float64).tiny)
        angle = np.degrees(opening_angle(vectors, truth))
        return {"angle_deg": angle, "z_bias": vectors[:, 2] / lengths - truth[:, 2]}

    def deviations(self, model: DirectionModel, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Return the angle to the truth in rad, and kappa without any correction: [N] each."""
        vectors, _ = self.vectors(model, events, self.options.rotations)
        truth = unit_vectors(events.columns["azimuth"], events.columns["zenith"])
        return {"angle": opening_angle(vectors, truth), "kappa": np.linalg.norm(vectors, axis=1)}

    def calibrate(self, model: DirectionModel, deviations: Columns) -> None:
        """Scale and bend kappa so that the circles which it says hold 68 % of the events do so."""
        if self.options.loss == "von_mises_fisher":
            sharpness, power = calibration(deviations["angle"], deviations["kappa"])
            model.sharpness.fill_(sharpness)
            model.power.fill_(power)

    def graphs(self, model: DirectionModel, made: Provenance, folder: Path) -> Graphs:
        """Write the ONNX graph from raw pulses to directions; see export."""
        from crpipe.workloads.direction import export  # noqa: PLC0415 - onnx is slow, and an extra

        graph = export.PulseGraph(model, self.options.pulses_per_dom, self.options.max_doms)
        return export.write(
            graph,
            lambda events: _with_kappa(model, self.vectors(model, events, 1)[0]),
            made.layout,
            folder,
        )

    def card(self, made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        """Return what a user of the graph should know; see export."""
        from crpipe.workloads.direction import export  # noqa: PLC0415

        return export.sections(graphs, kappa=self.options.loss == "von_mises_fisher")

    def score(self, truth: Events, prediction: Columns, folder: Path) -> Mapping[str, Measured]:
        """Compare with the truth; see scoring.score."""
        from crpipe.workloads.direction.scoring import score as scoring  # noqa: PLC0415 - training needs no matplotlib

        return scoring.score(truth, prediction, folder)


class FlatTransformer(DirectionWorkload[FlatTransformerOptions]):
    """A transformer over the sensors of an event."""

    def network(self, features: int) -> SensorTransformer:
        """Build the transformer."""
        return SensorTransformer(entrance(features, self.options), self.options)


class HierarchicalTransformer(DirectionWorkload[HierarchicalTransformerOptions]):
    """A transformer over the pulses of each sensor, then one over the sensors of an event."""

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Count at most how many pulses of each event enter the network: [N]."""
        return np.clip(events.multiplicity, 1, self.options.max_doms * self.options.pulses_per_dom)

    def arrays(self, doms: DomVectors) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of a batch, with its sensors in groups of about as many pulses."""
        arrays = super().arrays(doms)
        return arrays | pulse_arrays(doms.slot, len(arrays["sensor"]), self.options.pulses_per_dom)

    def encoder(self) -> PulseEncoder:
        """Build the transformer over pulses."""
        return PulseEncoder(self.options)

    def network(self, features: int) -> EventTransformer:  # noqa: ARG002 - it sees those of pulses through the encoder
        """Build the transformer over sensors."""
        return EventTransformer(self.options)


class DeepSet(DirectionWorkload[DeepSetOptions]):
    """A small network over single sensors and their sums."""

    def network(self, features: int) -> SensorDeepSet:
        """Build the DeepSet."""
        return SensorDeepSet(features, self.options)


def _kappa(model: DirectionModel, lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    return model.kappa(torch.from_numpy(lengths)).numpy()


def _with_kappa(model: DirectionModel, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors * (_kappa(model, lengths) / np.maximum(lengths, np.finfo(np.float64).tiny))[:, None]


def turned_back(vectors: Tensor, angle: float) -> Tensor:
    """Turn vectors [B, 3] by minus ``angle``, in rad, about the vertical axis."""
    x, y, z = vectors.unbind(dim=1)
    cosine, sine = math.cos(angle), math.sin(angle)
    return torch.stack([x * cosine + y * sine, y * cosine - x * sine, z], dim=1)
