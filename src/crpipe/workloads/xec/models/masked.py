"""The workloads MaskedAutoencoder and Inpainter: sensors are hidden, and found again from the others."""

from __future__ import annotations

import abc
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import torch

from crpipe.author import Metric, OptimizerSpec, Workload, cut_lists
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSOR, TIME, TIME_VALID
from crpipe.workloads.xec.models.decoder import LIGHT_BINS, Found, MaskedModel
from crpipe.workloads.xec.models.features import (
    hidden_by_face,
    hidden_sensors,
    sensors_of,
    without_channels,
)
from crpipe.workloads.xec.models.heads import smooth_l1
from crpipe.workloads.xec.options import InpainterOptions, MaskedAutoencoderOptions
from crpipe.workloads.xec.scoring import hidden as inpainted
from crpipe.workloads.xec.scoring.baseline import neighbour_average, solid_angle_average
from crpipe.workloads.xec.scoring.hidden import DEAD, HIDDEN
from crpipe.workloads.xec.sensors import face_of, read_sensor_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.campaign.records import Tables
    from crpipe.events.batch import Events
    from crpipe.inference.card import Provenance
    from crpipe.inference.export import Graphs
    from crpipe.train.workload import Batch, Columns, Measured, Metrics

# What an inpainter says of each event: numbers, and lists of the sensors that it found.

# List columns of a prediction: one value for each found sensor of the event.
LISTS = {
    "sensor_id": np.int16,
    "kind": np.int8,
    "photons": np.float32,
    "time_ns": np.float32,
    "true_photons": np.float32,
    "true_time_ns": np.float32,
}


def hidden_sensor_columns(
    sensors: NDArray[np.float32],
    hidden: NDArray[np.bool_],
    photons: NDArray[np.float32],
    time_ns: NDArray[np.float32],
    averages: Callable[[NDArray[np.bool_]], Columns],
) -> Columns:
    """List hidden and dead sensors of N events, with what was found and, of hidden ones, what they saw.

    sensors: [N, 4760, 4]; hidden: [N, 4760]; photons, time_ns: [N, 4760], found. Numbers of each event:
    hidden, dead (how many). Lists: see LISTS; true values are NaN where nobody knows them. averages: of the
    sensors around hidden and dead ones [N, 4760], by name, in the order of ``np.nonzero``; {} for none.
    """
    valid = sensors[..., PHOTONS_VALID] > 0
    listed = hidden | ~valid
    event, sensor = np.nonzero(listed)
    is_hidden = hidden[event, sensor]
    timed = is_hidden & (sensors[event, sensor, TIME_VALID] > 0)
    values: tuple[NDArray[Any], ...] = (
        sensor,
        np.where(is_hidden, HIDDEN, DEAD),
        photons[event, sensor],
        time_ns[event, sensor],
        np.where(is_hidden, sensors[event, sensor, PHOTONS], np.nan),
        np.where(timed, sensors[event, sensor, TIME], np.nan),
    )
    counts = listed.sum(axis=1)
    columns: Columns = {
        "hidden": hidden.sum(axis=1).astype(np.int64),
        "dead": (~valid).sum(axis=1).astype(np.int64),
    }
    flat = {name: part.astype(LISTS[name]) for name, part in zip(LISTS, values, strict=True)}
    for name, part in (flat | averages(listed)).items():
        columns[name] = cut_lists(part, counts)
    return columns


def hidden_sensor_table(events: Events, prediction: Columns) -> pa.Table:
    """Return one row for each found sensor, under the names of the reference's branches.

    mask_type: 0 hidden, 1 dead. Times in s. What nobody knows is NaN.
    """
    lengths = np.array([len(each) for each in prediction["sensor_id"]], np.int64)
    lists = {name: np.concatenate([np.zeros(0, dtype), *prediction[name]]) for name, dtype in LISTS.items()}
    sensor = lists["sensor_id"].astype(np.int32)
    values: dict[str, tuple[Any, type]] = {
        "run_number": (np.repeat(events.columns["run"], lengths), np.int64),
        "event_number": (np.repeat(events.columns["event"], lengths), np.int64),
        "sensor_id": (sensor, np.int32),
        "face": (face_of()[sensor], np.int32),
        "mask_type": (lists["kind"], np.int32),
        "truth_npho": (lists["true_photons"], np.float32),
        "truth_time": (lists["true_time_ns"] * 1e-9, np.float32),
        "pred_npho": (lists["photons"], np.float32),
        "pred_time": (lists["time_ns"] * 1e-9, np.float32),
        "error_npho": (lists["photons"] - lists["true_photons"], np.float32),
        "error_time": ((lists["time_ns"] - lists["true_time_ns"]) * 1e-9, np.float32),
    }
    return pa.table({name: column.astype(dtype) for name, (column, dtype) in values.items()})


Options = TypeVar("Options", bound=MaskedAutoencoderOptions | InpainterOptions)
_USUAL_LIGHT = 85_000.0
_MOST_LIGHT = (0.001, 0.999)  # quantiles between which the light of an event is in bins


class MaskedWorkload(Workload, Generic[Options]):
    """Everything but how many sensors are hidden."""

    options: Options
    event_columns: tuple[str, ...] = ()
    item_columns = tuple(field.name for field in SENSOR)
    needs = ("sensors",)
    metrics = inpainted.METRICS
    validation_metrics = (
        Metric("photons_error", "encoded photons of hidden sensors, mean distance", ideal=0.0),
        Metric("neighbours_error", "the same of the mean of the nearest sensors", ideal=0.0),
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.optimizer = OptimizerSpec("adam", options.learning_rate, weight_decay=options.weight_decay)
        self.places: NDArray[np.float64] = np.zeros((0, 6))
        if options.reweight_light:
            self.fit, self.fit_events = self._fit_light, 10_000

    @abc.abstractmethod
    def shares(self, events: int, random: np.random.Generator, *, evaluated: bool) -> NDArray[np.float64]:
        """Choose the share of the valid sensors that is hidden in each event: [N]."""

    def use(self, tables: Tables) -> None:
        """Read where the sensors are."""
        self.places = read_sensor_map(tables["sensors"])

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Return sensors [B, 4760, 4] and which of them are hidden, [B, 4760]."""
        sensors = sensors_of(events.take(index))
        if self.options.channel_dropout and seed:
            sensors = without_channels(sensors, self.options.channel_dropout, (*seed, 1))
        shares = self.shares(len(sensors), np.random.default_rng((*seed, 2)), evaluated=not seed)
        flat = self.options.mask_flat and bool(seed)
        if self.options.mask_faces and seed:
            of_faces = {face: np.full(len(sensors), each) for face, each in self.options.mask_faces.items()}
            hidden = hidden_by_face(sensors, of_faces, (*seed, 3), flat=flat)
        else:
            hidden = hidden_sensors(sensors, shares, (*seed, 3), flat=flat)
        return {"sensors": torch.from_numpy(sensors), "hidden": torch.from_numpy(hidden)}

    def model(self) -> MaskedModel:
        """Build encoder and decoders."""
        return MaskedModel(self.options, self.places, _USUAL_LIGHT)

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Metrics]:  # noqa: ARG002
        """Compare hidden sensors, encoded, with what they saw."""
        assert isinstance(model, MaskedModel)
        sensors, hidden = batch["sensors"], batch["hidden"]
        result: Found = model(visible(sensors, hidden))
        photons, time = _truth(model, sensors, result)
        power = self.options.photons_power
        weight = (sensors[..., PHOTONS].clamp_min(1) + 1) ** power if power else None
        of_photons = _mean(smooth_l1(result.photons_encoded - photons, self.options.beta), hidden, weight)
        timed = hidden & (sensors[..., TIME_VALID] > 0)
        of_time = _mean(smooth_l1(result.time_encoded - time, self.options.beta), timed)
        share = hidden.sum() / (sensors[..., PHOTONS_VALID] > 0).sum().clamp_min(1)  # dead ones do not count
        shown = {
            "photons_loss": of_photons.detach().mean(),
            "time_loss": of_time.detach().mean(),
            "mask_ratio": share,
        }
        total = of_photons + self.options.time_weight * of_time
        if self.options.balance == "learned":
            parts = {"photons": of_photons, "time": of_time}
            spreads = list(model.log_variance.items())
            total = sum((parts[name] * (-s).exp() + 0.5 * s for name, s in spreads), torch.zeros_like(total))
            shown |= {f"{name}_spread": (0.5 * s.detach()).exp() for name, s in spreads}
        return (total * self._weights(model, sensors)).mean(), shown

    def _weights(self, model: MaskedModel, sensors: Tensor) -> Tensor | float:
        """Weigh events by how rare their light is: [B], or 1."""
        if not self.options.reweight_light:
            return 1.0
        low, width = model.get_buffer("light_from")
        number = ((_light(sensors) - low) / width).long().clamp(0, LIGHT_BINS - 1)
        return model.get_buffer("light_weight")[number]

    def _fit_light(self, model: nn.Module, blocks: Iterable[Events]) -> None:
        """Count how often each amount of light occurs; the mean weight of these events is 1."""
        light = [_light(torch.from_numpy(sensors_of(events))) for events in blocks]
        if not light:
            return
        logs = torch.cat(light).double()
        low, high = torch.quantile(logs, torch.tensor(_MOST_LIGHT, dtype=torch.double))
        width = ((high - low) / LIGHT_BINS).clamp_min(1e-6)
        number = ((logs - low) / width).long().clamp(0, LIGHT_BINS - 1)
        counts = torch.bincount(number, minlength=LIGHT_BINS).double()
        weights = (len(logs) / counts.clamp_min(1)) ** self.options.reweight_light
        model.get_buffer("light_from").copy_(torch.stack([low, width]))
        model.get_buffer("light_weight").copy_(weights / weights[number].mean())

    def validate(self, model: MaskedModel, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Measure the mean distance of the encoded photons of hidden sensors: [N] each."""
        batch = self.on_device(model, events)
        sensors, hidden = batch["sensors"], batch["hidden"]
        shown = visible(sensors, hidden)
        result: Found = model(shown)
        photons, _ = _truth(model, sensors, result)
        simple = model.simple(model.encoder.features(shown)[0])[..., 0]
        return {
            "photons_error": _mean((result.photons_encoded - photons).abs(), hidden).cpu().numpy(),
            "neighbours_error": _mean((simple - photons).abs(), hidden).cpu().numpy(),
        }

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        """Hide sensors, find them and the dead ones, and measure how well: see hidden_sensor_columns."""
        sensors = sensors_of(events)
        seed = (int(torch.randint(2**31, (1,), generator=generator, device=generator.device).item()),)
        hidden = self.hidden_to_compare(sensors, seed)
        device = next(model.parameters()).device
        shown = visible(torch.from_numpy(sensors).to(device), torch.from_numpy(hidden).to(device))
        result: Found = model(shown)
        photons, time = result.photons.cpu().numpy(), result.time_ns.cpu().numpy()
        return hidden_sensor_columns(sensors, hidden, photons, time, partial(self.averages, sensors))

    def hidden_to_compare(self, sensors: NDArray[np.float32], seed: tuple[int, ...]) -> NDArray[np.bool_]:
        """Choose what evaluation and prediction hide and find again: [N, 4760]."""
        shares = self.shares(len(sensors), np.random.default_rng(seed), evaluated=True)
        return hidden_sensors(sensors, shares, seed) if shares.any() else np.zeros(sensors.shape[:2], bool)

    def averages(self, sensors: NDArray[np.float32], wanted: NDArray[np.bool_]) -> Columns:
        """Estimate wanted sensors [N, 4760] from their neighbours: {name: in the order of nonzero}."""
        if not self.options.averages:
            return {}
        photons, valid = sensors[..., PHOTONS], sensors[..., PHOTONS_VALID]
        return {
            "neighbours_photons": neighbour_average(photons, valid, wanted, self.places),
            "solid_angle_photons": solid_angle_average(photons, valid, wanted, self.places),
        }

    def score(self, truth: Events, prediction: Columns, folder: Path) -> Mapping[str, Measured]:
        """Score the hidden sensors; see scoring.hidden."""
        return inpainted.score(truth, prediction, folder)

    def shown(self, truth: Events, prediction: Columns) -> NDArray[np.integer[Any]]:  # noqa: ARG002
        """Choose the events whose hidden sensors were found worst."""
        return inpainted.worst(prediction)

    def show(self, model: nn.Module, events: Events, prediction: Columns, folder: Path) -> dict[str, float]:  # noqa: ARG002
        """Draw these events, as seen and as found."""
        inpainted.draw_worst(events, prediction, folder)
        return {}


class MaskedAutoencoder(MaskedWorkload[MaskedAutoencoderOptions]):
    """Hides most of an event, so that the encoder has to learn what light looks like."""

    def shares(self, events: int, random: np.random.Generator, *, evaluated: bool) -> NDArray[np.float64]:  # noqa: ARG002
        """Hide the same share of all events: [N]."""
        return np.full(events, self.options.mask)


class Inpainter(MaskedWorkload[InpainterOptions]):
    """Finds a few hidden sensors as it finds dead ones."""

    def __init__(self, options: InpainterOptions) -> None:
        super().__init__(options)
        self.metrics = inpainted.METRICS + inpainted.by_face(tuple(options.predict_hidden))

    def shares(self, events: int, random: np.random.Generator, *, evaluated: bool) -> NDArray[np.float64]:
        """Draw shares evenly between the two limits, or take that of evaluation and prediction: [N]."""
        if evaluated:
            return np.full(events, self.options.predict_mask)
        return random.uniform(self.options.mask_least, self.options.mask_most, events)

    def hidden_to_compare(self, sensors: NDArray[np.float32], seed: tuple[int, ...]) -> NDArray[np.bool_]:
        """Hide the numbers of ``predict_hidden`` on each face, or else ``predict_mask``: [N, 4760]."""
        numbers = self.options.predict_hidden
        if not numbers:
            return super().hidden_to_compare(sensors, seed)
        return hidden_by_face(sensors, {face: np.full(len(sensors), n) for face, n in numbers.items()}, seed)

    def table(self, events: Events, prediction: Columns) -> pa.Table:
        """Return one row for each found sensor; see hidden_sensor_table."""
        return hidden_sensor_table(events, prediction)

    def graphs(self, model: MaskedModel, made: Provenance, folder: Path) -> Graphs:
        """Write the ONNX graph from raw branches to all sensors; see export.write_inpainter."""
        from crpipe.workloads.xec import export  # noqa: PLC0415 - onnx is slow, and an extra

        return export.write_inpainter(model, made, folder)

    def card(self, made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
        """Return what a user of the graph should know; see export.inpainter_sections."""
        from crpipe.workloads.xec import export  # noqa: PLC0415

        return export.inpainter_sections(made, graphs)


def visible(sensors: Tensor, hidden: Tensor) -> Tensor:
    """Copy sensors [B, 4760, 4] with the hidden ones, [B, 4760], as if they were dead."""
    return torch.where(hidden[..., None], 0.0, sensors)


def _truth(model: MaskedModel, sensors: Tensor, result: Found) -> tuple[Tensor, Tensor]:
    """Encode the true photons and times as the model does: [B, 4760] each."""
    codec = model.encoder.features.codec
    return codec.encode_photons(sensors[..., PHOTONS]), codec.encode_time(
        sensors[..., TIME], result.expected_ns
    )


def _light(sensors: Tensor) -> Tensor:
    """Return the logarithm of the photons above zero of events [B, 4760, 4]: [B]."""
    return sensors[..., PHOTONS].clamp_min(0).sum(dim=1).clamp_min(1).log()


def _mean(values: Tensor, chosen: Tensor, weight: Tensor | None = None) -> Tensor:
    """Average values [B, 4760] over the chosen sensors of each event, 0 without any: [B]."""
    if weight is None:
        return torch.where(chosen, values, 0.0).sum(dim=1) / chosen.sum(dim=1).clamp_min(1)
    weight = torch.where(chosen, weight, 0.0)
    return (weight * values).sum(dim=1) / torch.where(chosen.any(dim=1), weight.sum(dim=1), 1.0)
