"""The workload Regressor: from the sensors of an event to energy, place, time and angle of its gamma."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.author import Metric, OptimizerSpec, Workload
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSOR, TIME_VALID, TRUTH, TRUTHS, Truth
from crpipe.workloads.xec.models import heads
from crpipe.workloads.xec.models.features import sensors_of, without_channels
from crpipe.workloads.xec.models.heads import WITHIN, GammaModel, difference, sigma_of
from crpipe.workloads.xec.scoring import dead
from crpipe.workloads.xec.scoring.metrics import metrics
from crpipe.workloads.xec.sensors import FACES, face_of, read_sensor_map

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.campaign.records import Tables
    from crpipe.events.batch import Events
    from crpipe.inference.card import Provenance
    from crpipe.inference.export import Graphs
    from crpipe.train.workload import Batch, Columns, Measured, Metrics
    from crpipe.workloads.xec.options import RegressorOptions

_LEAST_PULL = 1e-6  # factor of predicted uncertainties

# ruff: noqa: PLC0415 - training has no use for matplotlib, nor for onnx, which is an extra

# Weights that make the distribution of an event column flat, from histograms of the training events.


class Flattening:
    """Weighs events by the inverse of how often their values occur.

    The mean over training events is 1 for each column. Weights of several columns are multiplied: their mean
    is 1 where the columns do not depend on each other.
    """

    def __init__(self, histograms: Mapping[str, Any], columns: Sequence[str], most: float) -> None:
        """Take the histograms of ``columns``; ``most`` limits the weight of each column, over the mean."""
        self._weights = {name: _of_bins(histograms[name].counts, most) for name in columns}
        self._edges = {name: (histograms[name].low, histograms[name].high) for name in columns}

    def of(self, events: Events) -> NDArray[np.float32]:
        """Weigh each event, [N]; a value outside of a histogram counts as in the nearest bin."""
        product = np.ones(len(events))
        for name, weights in self._weights.items():
            low, high = self._edges[name]
            share = (events.columns[name].astype(np.float64) - low) / (high - low)
            at = np.clip(np.floor(share * len(weights)), 0, len(weights) - 1).astype(np.int64)
            product *= weights[at]
        return product.astype(np.float32)


def _of_bins(counts: NDArray[np.int64], most: float) -> NDArray[np.float64]:
    """Return the weight of each bin: all filled bins together weigh the same, but none above ``most``."""
    total, filled = counts.sum(), counts > 0
    if not total:
        return np.ones(len(counts))
    weights = np.ones(len(counts))
    weights[filled] = total / (filled.sum() * counts[filled])
    # Clipping lowers the mean, which is scaled back to 1; a few rounds settle it.
    for _ in range(100):
        mean = float((weights * counts).sum() / total)
        clipped = np.minimum(weights / mean, most)
        if np.allclose(clipped, weights, rtol=1e-12, atol=0):
            break
        weights = clipped
    return weights


class Regressor(Workload):
    """Learns the tasks that are asked for, each as a correction of a regression on sums of the light."""

    options: RegressorOptions
    item_columns = tuple(field.name for field in SENSOR)
    needs = ("sensors",)
    fit_events = 10_000
    calibration_events = 2000

    def __init__(self, options: RegressorOptions) -> None:
        super().__init__(options)
        self.optimizer = OptimizerSpec("adam", options.learning_rate, weight_decay=options.weight_decay)
        self.tasks: tuple[Truth, ...] = tuple(name for name in TRUTHS if name in options.tasks)
        self.event_columns = tuple(field.name for name in self.tasks for field in TRUTH[name])
        uncertain = tuple(name for name in self.tasks if options.tasks[name].loss == "gaussian_nll")
        self.metrics = metrics(self.tasks, uncertain) + dead.declared(options, self.tasks)
        self.wanted_histograms = options.reweight
        self.validation_metrics = tuple(
            Metric(f"{name}_loss", f"loss of the {name}", ideal=0.0) for name in self.tasks
        )
        self.places: NDArray[np.float64] = np.zeros((0, 6))
        self._flattening: Flattening | None = None
        self._model: GammaModel | None = None
        self._tables: Tables = {}
        self._find: dead.Photons | None = None

    def use(self, tables: Tables) -> None:
        """Read where the sensors are."""
        self._tables = tables
        self.places = read_sensor_map(tables["sensors"])

    def use_histograms(self, histograms: Mapping[str, Any]) -> None:
        """Weigh training events so that the columns of ``model.reweight`` are flat."""
        self._flattening = Flattening(histograms, self.options.reweight, self.options.reweight_most)

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Return sensors [B, 4760, 4], the true values of each task [B, D], and a weight for each event."""
        part = events.take(index)
        sensors = sensors_of(part)
        if self.options.channel_dropout and seed:
            sensors = without_channels(sensors, self.options.channel_dropout, seed)
        batch: Batch = {"sensors": torch.from_numpy(sensors)}
        for name in self.tasks:
            columns = [part.columns[field.name] for field in TRUTH[name]]
            batch[name] = torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
        if self._flattening is not None:
            batch["balance"] = torch.from_numpy(self._flattening.of(part))
        return batch

    def model(self) -> GammaModel:
        """Build regression, encoder and heads."""
        self._model = GammaModel(self.options, self.places)
        return self._model

    def fit(self, model: GammaModel, blocks: Iterable[Events]) -> None:
        """Fit the regression, from which the network begins."""
        batches = (self.on_device(model, events) for events in blocks)
        model.fit((batch["sensors"], {name: batch[name] for name in self.tasks}) for batch in batches)

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Metrics]:  # noqa: ARG002
        """Compare predicted and true values; the loss is the sum over tasks, by weight or learned balance."""
        output = model(batch["sensors"])
        total = batch["sensors"].new_zeros(())
        shown: Metrics = {}
        for name, loss in self.losses(model, output, batch).items():
            mean = (loss * batch["balance"]).mean() if "balance" in batch else loss.mean()
            shown[f"{name}_loss"] = loss.detach().mean()
            if self.options.balance == "learned":
                spread = model.log_variance[name]  # type: ignore[index]
                total = total + mean * torch.exp(-spread) + 0.5 * spread
                shown[f"{name}_spread"] = torch.exp(0.5 * spread.detach())
            else:
                total = total + self.options.tasks[name].weight * mean
        return total, shown

    def losses(
        self,
        model: nn.Module,
        output: Mapping[Truth, tuple[Tensor, Tensor | None]],
        truth: Mapping[Any, Tensor],
    ) -> dict[Truth, Tensor]:
        """Return the loss of each task and event, [B]."""
        losses = {}
        for name in self.tasks:
            task = self.options.tasks[name]
            value, log_sigma = output[name]
            unit = model.get_buffer(f"unit_{name}")
            if task.loss == "cosine":
                losses[name] = heads.cosine_loss(value, truth[name]) / unit.square().mean()
                continue
            off = difference(name, value, truth[name], log=task.log) / unit
            losses[name] = heads.task_loss(off, log_sigma, task)
        return losses

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        """Predict the columns of all tasks, their uncertainties, and what the regression gives.

        With ``model.dead_sensors`` or ``dead_list`` also the tasks with dead sensors, see scoring.dead.
        """
        assert isinstance(model, GammaModel)
        device = next(model.parameters()).device
        sensors = sensors_of(events)
        columns: Columns = {}
        for name, (value, log_sigma) in model(torch.from_numpy(sensors).to(device)).items():
            sigma = None if log_sigma is None else sigma_of(model, name, value, log_sigma)
            for at, field in enumerate(TRUTH[name]):
                columns[field.name] = value[:, at].cpu().numpy()
                if sigma is not None:
                    columns[f"{field.name}_sigma"] = sigma[:, at].cpu().numpy()
        valid = np.where(sensors[..., PHOTONS_VALID] > 0, sensors[..., PHOTONS], 0)
        columns["photons_sum"] = valid.sum(axis=1, dtype=np.float64).astype(np.float32)
        columns["photons_inner"] = np.maximum(valid, 0)[:, face_of() == FACES.index("inner")].sum(axis=1)
        columns["timed"] = sensors[..., TIME_VALID].sum(axis=1).astype(np.int64)
        columns |= {f"baseline_{name}": each for name, each in self._estimates(model, events).items()}
        return columns | self._with_dead_sensors(model, events, generator)

    def _with_dead_sensors(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        columns: Columns = {}
        if not dead.labels(self.options):
            return columns
        sensors, device = sensors_of(events), next(model.parameters()).device
        path = self.options.dead_inpainter
        if path and self._find is None:
            self._find = dead.open_inpainter(Path(path), self._tables, self.places)
        seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device).item())
        for label, those in dead.dead_of(events, sensors, self.options, seed):
            columns[f"dead_{label}"] = those.sum(axis=1).astype(np.int64)
            for method, filled in dead.filled(sensors, those, self.places, self._find, device):
                for name, (value, _) in model(torch.from_numpy(filled).to(device)).items():
                    for at, field in enumerate(TRUTH[name]):
                        columns[dead.column(label, method, field.name)] = value[:, at].cpu().numpy()
        return columns

    def baseline(self, events: Events) -> Columns:
        """Reconstruct by the regression alone, as ``fit`` left it in the model."""
        model = self._model or self.model()
        with torch.no_grad():
            return self._estimates(model, events)

    def _estimates(self, model: GammaModel, events: Events) -> Columns:
        device = next(model.parameters()).device
        estimates = model.estimates(torch.from_numpy(sensors_of(events)).to(device))
        return {
            field.name: values[:, at].cpu().numpy()
            for name, values in estimates.items()
            for at, field in enumerate(TRUTH[name])
        }

    def validate(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Return the loss of each task for each event: [N]."""
        batch = self.on_device(model, events)
        losses = self.losses(model, model(batch["sensors"]), batch)
        return {f"{name}_loss": each.cpu().numpy() for name, each in losses.items()}

    def deviations(self, model: GammaModel, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Return the distance to the truth in units of the predicted uncertainty: [N] for each column."""
        batch = self.on_device(model, events)
        columns: Columns = {}
        for name, (value, log_sigma) in model(batch["sensors"]).items():
            if log_sigma is not None:
                unit = model.get_buffer(f"unit_{name}")
                off = difference(name, value, batch[name], log=self.options.tasks[name].log) / unit
                pulls = (off.abs() * torch.exp(-log_sigma)).cpu().numpy()
                columns |= {field.name: pulls[:, at] for at, field in enumerate(TRUTH[name])}
        return columns

    def calibrate(self, model: nn.Module, deviations: Columns) -> None:
        """Scale each predicted uncertainty so that it covers 68 % of the events."""
        for name in self.tasks:
            for at, field in enumerate(TRUTH[name]):
                pulls = np.asarray(deviations.get(field.name, ()), np.float64)
                pulls = pulls[np.isfinite(pulls)]
                if len(pulls):
                    within = max(float(np.quantile(pulls, WITHIN)), _LEAST_PULL)
                    model.get_buffer(f"sigma_{name}")[at] = within

    def shown(self, truth: Events, prediction: Columns) -> NDArray[np.integer[Any]]:
        """Choose the worst events, and a sample for the saliency."""
        from crpipe.workloads.xec.scoring import display

        return display.choose(truth, prediction, self.tasks)

    def show(self, model: GammaModel, events: Events, prediction: Columns, folder: Path) -> dict[str, float]:
        """Draw the worst events, and which faces the predictions depend on."""
        from crpipe.workloads.xec.scoring import display

        display.draw_worst(events, prediction, self.tasks, folder)
        return display.saliency(model, events, folder)

    def graphs(self, model: GammaModel, made: Provenance, folder: Path) -> Graphs:
        """Write the ONNX graph from raw branches to predictions; see export.write_regressor."""
        from crpipe.workloads.xec import export

        return export.write_regressor(model, self.options, made, folder)

    def card(self, made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
        """Return what a user of the graph should know; see export.regressor_sections."""
        from crpipe.workloads.xec import export

        return export.regressor_sections(made, graphs)

    def score(self, truth: Events, prediction: Columns, folder: Path) -> Mapping[str, Measured]:
        """Compare with the truth; see scoring.score."""
        from crpipe.workloads.xec.scoring import score as scoring

        return scoring.score(truth, prediction, folder, self.tasks)
