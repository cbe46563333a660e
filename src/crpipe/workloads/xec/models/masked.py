"""The workloads MaskedAutoencoder and Inpainter: sensors are hidden, and found again from the others."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import torch

from crpipe.events.metric import Metric
from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.xec.layout import PHOTONS, SENSOR, TIME, TIME_VALID
from crpipe.workloads.xec.models.batches import hidden_sensors, sensors_of, without_channels
from crpipe.workloads.xec.models.decoder import Found, MaskedModel
from crpipe.workloads.xec.models.losses import smooth_l1
from crpipe.workloads.xec.options import InpainterOptions, MaskedAutoencoderOptions
from crpipe.workloads.xec.scoring import inpainted
from crpipe.workloads.xec.sensors import face_of, read_sensor_map

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.events.batch import Events
    from crpipe.events.tables import Tables
    from crpipe.train.workload import Batch, Columns, Metrics

Options = TypeVar("Options", bound=MaskedAutoencoderOptions | InpainterOptions)
HIDDEN, DEAD = 0, 1  # kinds of a found sensor
_USUAL_LIGHT = 300_000.0


class MaskedWorkload(abc.ABC, Generic[Options]):
    """Everything but how many sensors are hidden."""

    event_columns: tuple[str, ...] = ()
    item_columns = tuple(field.name for field in SENSOR)
    needs = ("sensors",)
    metrics = inpainted.METRICS
    validation_metrics = (
        Metric("photons_error", "encoded photons of hidden sensors, mean distance", ideal=0.0),
        Metric("neighbours_error", "the same of the mean of the nearest sensors", ideal=0.0),
    )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.places: NDArray[np.float64] = np.zeros((0, 6))

    @abc.abstractmethod
    def shares(self, events: int, random: np.random.Generator, *, judged: bool) -> NDArray[np.float64]:
        """Choose the share of the valid sensors that is hidden in each event: [N]."""

    def use(self, tables: Tables) -> None:
        """Read where the sensors are."""
        self.places = read_sensor_map(tables["sensors"])

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Count the sensors of each event: [N]."""
        return events.multiplicity

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Give sensors [B, 4760, 4] and which of them are hidden, [B, 4760]."""
        sensors = sensors_of(events.take(index))
        if self.options.channel_dropout and seed:
            sensors = without_channels(sensors, self.options.channel_dropout, (*seed, 1))
        shares = self.shares(len(sensors), np.random.default_rng((*seed, 2)), judged=not seed)
        hidden = hidden_sensors(sensors, shares, (*seed, 3))
        return {"sensors": torch.from_numpy(sensors), "hidden": torch.from_numpy(hidden)}

    def model(self) -> MaskedModel:
        """Build encoder and decoders."""
        return MaskedModel(self.options, self.places, _USUAL_LIGHT)

    def phases(self) -> list[Phase]:
        """Fit all weights."""
        adam = OptimizerSpec("adam", self.options.learning_rate, weight_decay=self.options.weight_decay)
        return [Phase("fit", lambda model: model.parameters(), self.loss, adam, average=True)]

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Metrics]:  # noqa: ARG002
        """Compare hidden sensors, encoded, with what they saw."""
        assert isinstance(model, MaskedModel)
        sensors, hidden = batch["sensors"], batch["hidden"]
        found = model(visible(sensors, hidden))
        photons, time = _truth(model, sensors, found)
        of_photons = _mean(smooth_l1(found.photons_encoded - photons, self.options.beta), hidden)
        timed = hidden & (sensors[..., TIME_VALID] > 0)
        of_time = _mean(smooth_l1(found.time_encoded - time, self.options.beta), timed)
        shown = {"photons_loss": of_photons.detach().mean(), "time_loss": of_time.detach().mean()}
        return (of_photons + self.options.time_weight * of_time).mean(), shown

    def validate(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Measure the mean distance of the encoded photons of hidden sensors: [N] each."""
        assert isinstance(model, MaskedModel)
        batch = self.collate(events, np.arange(len(events)), ())
        device = next(model.parameters()).device
        sensors, hidden = batch["sensors"].to(device), batch["hidden"].to(device)
        shown = visible(sensors, hidden)
        found = model(shown)
        photons, _ = _truth(model, sensors, found)
        simple = model.simple(model.encoder.features(shown)[0])[..., 0]
        return {
            "photons_error": _mean((found.photons_encoded - photons).abs(), hidden).cpu().numpy(),
            "neighbours_error": _mean((simple - photons).abs(), hidden).cpu().numpy(),
        }

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        """Hide sensors, find them and the dead ones, and measure how well: see inpainted.columns."""
        sensors = sensors_of(events)
        seed = (int(torch.randint(2**31, (1,), generator=generator, device=generator.device).item()),)
        shares = self.shares(len(events), np.random.default_rng(seed), judged=True)
        hidden = np.zeros(sensors.shape[:2], bool)
        if shares.any():
            hidden = hidden_sensors(sensors, shares, seed)
        device = next(model.parameters()).device
        shown = visible(torch.from_numpy(sensors).to(device), torch.from_numpy(hidden).to(device))
        found: Found = model(shown)
        return inpainted.columns(
            sensors, hidden, found.photons.cpu().numpy(), found.time_ns.cpu().numpy(), self.places
        )

    def score(self, truth: Events, prediction: Columns, folder: Path) -> dict[str, float]:
        """Judge the hidden sensors; see scoring.inpainted."""
        return inpainted.score(truth, prediction, folder)


class MaskedAutoencoder(MaskedWorkload[MaskedAutoencoderOptions]):
    """Hides most of an event, so that the encoder has to learn what light looks like."""

    def shares(self, events: int, random: np.random.Generator, *, judged: bool) -> NDArray[np.float64]:  # noqa: ARG002
        """Hide the same share of all events: [N]."""
        return np.full(events, self.options.mask)


class Inpainter(MaskedWorkload[InpainterOptions]):
    """Finds a few hidden sensors as it finds dead ones."""

    def shares(self, events: int, random: np.random.Generator, *, judged: bool) -> NDArray[np.float64]:
        """Draw shares evenly between the two limits, or take that of evaluation and prediction: [N]."""
        if judged:
            return np.full(events, self.options.predict_mask)
        return random.uniform(self.options.mask_least, self.options.mask_most, events)

    def table(self, events: Events, prediction: Columns) -> pa.Table:
        """Give one row for each found sensor, with the branches of the reference's files."""
        lengths = np.array([len(each) for each in prediction["sensor_id"]], np.int64)
        sensor, kind, photons, time, true_photons, true_time = (
            np.concatenate([*prediction[name], np.zeros(0, dtype)]) for name, dtype in inpainted.LISTS.items()
        )
        sensor = sensor.astype(np.int32)
        rows: dict[str, NDArray[Any]] = {
            "run_number": np.repeat(events.columns["run"], lengths),
            "event_number": np.repeat(events.columns["event"], lengths),
            "sensor_id": sensor,
            "face": face_of().astype(np.int32)[sensor],
            "mask_type": kind.astype(np.int32),
            "truth_npho": true_photons,
            "truth_time": true_time * 1e-9,
            "pred_npho": photons,
            "pred_time": time * 1e-9,
            "error_npho": photons - true_photons,
            "error_time": (time - true_time) * 1e-9,
        }
        types = {"run_number": np.int64, "event_number": np.int64}
        types |= dict.fromkeys(("sensor_id", "face", "mask_type"), np.int32)
        return pa.table({name: values.astype(types.get(name, np.float32)) for name, values in rows.items()})


def visible(sensors: Tensor, hidden: Tensor) -> Tensor:
    """Copy sensors [B, 4760, 4] with the hidden ones, [B, 4760], as if they were dead."""
    return torch.where(hidden[..., None], 0.0, sensors)


def _truth(model: MaskedModel, sensors: Tensor, found: Found) -> tuple[Tensor, Tensor]:
    """Encode the true photons and times as the model does: [B, 4760] each."""
    codec = model.encoder.features.codec
    return codec.encode_photons(sensors[..., PHOTONS]), codec.encode_time(
        sensors[..., TIME], found.start_ns[:, None]
    )


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Average values [B, 4760] over the chosen sensors of each event, 0 without any: [B]."""
    return torch.where(chosen, values, 0.0).sum(dim=1) / chosen.sum(dim=1).clamp_min(1)
