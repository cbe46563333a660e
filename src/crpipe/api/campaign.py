"""A run and its campaign, opened from Python (`crpipe.open`): tables, batches of events, trained models."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.records import BestReceipt
from crpipe.config.files import config_files
from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.paths import DESTINATIONS, OUTLIERS, Paths
from crpipe.report.evaluations import BASELINE, FLOORS, MODEL, Evaluation, MetricRow, every_evaluation
from crpipe.report.series import chain_rows
from crpipe.report.state import CampaignState
from crpipe.report.verdicts import Verdict, verdicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from crpipe.api.model import EventBatches, TrainedModel
    from crpipe.events.layout import Layout

# ruff: noqa: PLC0415

# polars and torch are imported by what uses them.

Place = str | os.PathLike[str]


class CampaignRun:
    """One run and its data, read from their files; nothing is written, and jobs may run meanwhile.

    Every property reads the files again.
    """

    def __init__(self, campaign: Campaign) -> None:
        """Take a campaign, from its configuration or from its files alone."""
        self._campaign = campaign
        self._config = campaign.config if campaign.recorded is None else None

    def __repr__(self) -> str:
        """Name the run and its data."""
        data = self.paths.results if self._campaign.data else None
        return f"<crpipe run {self.paths.run_dir()}, data {data}>"

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._campaign.paths.run

    @property
    def paths(self) -> Paths:
        """Where every file of the campaign is."""
        return self._campaign.paths

    @property
    def layout(self) -> Layout:
        """Names, types, units and legal values of the columns of events and items.

        Raise DataError when the data were not found, or none were made yet.
        """
        return self._data().layout

    @property
    def ranges(self) -> pl.DataFrame:
        """One row for each range: range, state, files, quarantined, events, items, and events by destination.

        The destinations are train, validation, test, outliers, validation_outliers, test_outliers and
        rejected; together they are ``events``.
        Null where a range is not that far. Without a configuration, only ranges that were listed are known.
        """
        return ranges_frame(CampaignState.read(self._campaign if self._config else self._data()))

    @property
    def links(self) -> pl.DataFrame:
        """One row for each link of training: link, state, round, ranges, step, events, items, checkpoint, ….

        step, events, items: of the whole chain up to this link. best_*: of its best checkpoint, if one is
        kept. Without a configuration, only links whose training has begun are known.
        """
        return links_frame(CampaignState.read(self._campaign))

    @property
    def metrics(self) -> pl.DataFrame:
        """One row for each logged step, and for each validation, of the whole chain: step, link, losses, ….

        A metric is called PHASE/NAME, one of a validation validation/NAME; null in rows that do not have it.
        """
        return metrics_frame(self._campaign)

    @property
    def evaluations(self) -> pl.DataFrame:
        """One row for each number of each evaluated checkpoint: link, step, metric, value, error, floor, ….

        floor: the same number for a second simulation of the same events, or for halves of the truth.
        verdict: agrees, small difference, cannot tell or differs, and text: why; empty without a comparison.
        baseline: for a simple method without the model. Null where the workload offers none.
        declared: whether the reports show it. better: low, high or near (its ``ideal``).
        """
        return evaluations_frame(self.paths)

    def shards(
        self,
        part: str = "train",
        *,
        ranges: Sequence[str] = (),
        batch_events: int = 4096,
        epochs: int = 1,
        seed: int = 1,
    ) -> EventBatches:
        """Open the events of one part as shuffled batches of numpy arrays.

        A batch has N events and M items: ``batch.columns`` (arrays [N] by name), ``batch.multiplicity`` [N]
        and ``batch.items`` [M, K] float32, event after event; ``batch.offsets()`` [N + 1] are the ends. Names
        and units of the columns are in ``layout``.

        part: train, validation, test, or their outliers, validation_outliers, test_outliers (whose batches
        also end at 4 million items).
        ranges: their names, beginnings, or numbers from 0 as text; without any, all that are split.
        batch_events: most events of a batch. epochs: how often each event comes. seed: of the order.

        Raise ConfigError for an unknown part or range and a number that is too small, DataError for a range
        that is not split, ShardError for a damaged shard.
        """
        from crpipe.api.model import open_batches

        return open_batches(self._data(), part, ranges, batch_events=batch_events, epochs=epochs, seed=seed)

    def model(self, link: str = "latest", *, device: str = "cpu") -> TrainedModel:
        """Load a trained model: of the latest checkpoint, the ``best`` one, a LINK, LINK.best, or a file.

        device: cpu, cuda, or auto (a GPU when there is one). torch is imported here, which takes seconds.
        Options that may change after the training, such as ``model.rotations``, have the values of the
        configuration that the campaign was opened with; without one their defaults.

        Raise CheckpointError when there is no such checkpoint or it is damaged; also when it names a workload
        of a package that declares none, unless the campaign was opened with its configuration.
        """
        from crpipe.api.model import TrainedModel
        from crpipe.campaign.records import table_keys, table_paths
        from crpipe.inference.checkpoints import find_checkpoint, open_checkpoint
        from crpipe.inference.predictor import Predictor
        from crpipe.train.ranks import find_device

        record, config = self.paths.tables(), self._config
        tables, on_device = table_paths(record), find_device(device)
        trained = open_checkpoint(
            find_checkpoint(link, self.paths, lambda: self._campaign.chain.names),
            on_device,
            tables,
            table_keys(record),
            config.use_options() if config else {},
            (config.train.workload, config.source.reader) if config else (),
        )
        return TrainedModel(Predictor(trained, on_device), tables)

    def _data(self) -> Campaign:
        if not self._campaign.data:
            if self._config:
                raise DataError(f"{self.paths.results}: no data yet; run `crpipe run` first")
            run = self.paths.run_dir()
            raise DataError(
                f"{run}: the data of this run were not found beside it; name their directory: "
                f'crpipe.open("{run}", results="DIRECTORY")'
            )
        return self._campaign


def open_run(
    run: Place, *, results: Place | None = None, config: Place | Iterable[Place] | None = None
) -> CampaignRun:
    """Open a run; see ``crpipe.open``, which calls this."""
    folder = Path(run).absolute()
    moved = Path(results) if results is not None else None
    if config is None:
        return CampaignRun(Campaign.of_run(folder, moved))
    files = [config] if isinstance(config, str | os.PathLike) else list(config)
    root = folder.parent.parent
    mine = [Path(each).absolute() for each in files]
    named = [root / path for path in config_files(mine, here=root, environ={})]
    loaded = load_config(named)
    if loaded.run != folder.name:
        raise ConfigError(
            f"run: {loaded.run} in {named[-1]}, but the folder is {folder}; name its own configuration"
        )
    places = {"results": moved or root / loaded.results, "runs": folder.parent}
    settings = load_config(named, [f"{name}={json.dumps(str(place))}" for name, place in places.items()])
    return CampaignRun(Campaign.open(settings, "recorded"))


# Tables of a campaign as polars frames: ranges, links, metrics and evaluations.


Row = dict[str, Any]
RANGES: Any = {
    "range": pl.String,
    "state": pl.String,
    "files": pl.Int64,
    "quarantined": pl.Int64,
    "events": pl.Int64,
    "items": pl.Int64,
    **dict.fromkeys(DESTINATIONS, pl.Int64),
}
LINKS: Any = {
    "link": pl.String,
    "state": pl.String,
    "round": pl.Int64,
    "ranges": pl.List(pl.String),
    "step": pl.Int64,
    "events": pl.Int64,
    "items": pl.Int64,
    "skipped": pl.Int64,
    "stopped": pl.String,
    "checkpoint": pl.String,
    "best_step": pl.Int64,
    "best_metric": pl.String,
    "best_value": pl.Float64,
}
EVALUATIONS: Any = {
    "link": pl.String,
    "step": pl.Int64,
    "part": pl.String,
    "events": pl.Int64,
    "groups": pl.Int64,
    "metric": pl.String,
    "title": pl.String,
    "declared": pl.Boolean,
    "better": pl.String,
    "ideal": pl.Float64,
    "verdict": pl.String,
    "text": pl.String,
    **dict.fromkeys(("value", "error", "floor", "floor_error", "baseline", "baseline_error"), pl.Float64),
}


def ranges_frame(state: CampaignState) -> pl.DataFrame:
    """Return one row for each range, in order; null where nothing is known yet."""
    rows: list[Row] = []
    for item in state.ranges:
        if item.name == OUTLIERS:
            continue
        row: Row = {"range": item.name, "state": str(item.state), "files": item.files}
        row["quarantined"] = item.quarantined
        if item.ledger is not None:
            row |= {"events": item.ledger.events.listed, "items": item.ledger.items.listed}
            row |= {name: item.ledger.events.of(name) for name in DESTINATIONS}
        rows.append(row)
    return pl.DataFrame(rows, schema=RANGES)


def links_frame(state: CampaignState) -> pl.DataFrame:
    """Return one row for each link, in the order of the chain."""
    rows: list[Row] = []
    paths = state.campaign.paths
    for link in state.links:
        row: Row = {"link": link.name, "state": str(link.state), "round": link.round}
        row |= {"ranges": list(link.ranges), "step": link.step, "stopped": link.stopped}
        if link.receipt is not None:
            row |= {name: getattr(link.receipt, name) for name in ("step", "events", "items", "skipped")}
            row["checkpoint"] = str(paths.store(link.name) / link.receipt.checkpoint)
        best = BestReceipt.read_if_any(paths.best_receipt(link.name))
        if best is not None:
            row |= {"best_step": best.step, "best_metric": best.metric, "best_value": best.value}
        rows.append(row)
    return pl.DataFrame(rows, schema=LINKS)


def metrics_frame(campaign: Campaign) -> pl.DataFrame:
    """Return one row for each logged step of the chain; ``range`` of metrics.jsonl is called ``link``."""
    rows = chain_rows(campaign)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "range":
            columns["link"] = pl.Series(values, dtype=pl.String)
        else:
            is_integer = all(isinstance(value, int) for value in values if value is not None)
            kind: Any = int if is_integer else float
            numbers = [None if value is None else kind(value) for value in values]
            columns[name] = pl.Series(numbers, dtype=pl.Int64 if is_integer else pl.Float64)
    return pl.DataFrame(columns or {"step": pl.Series([], dtype=pl.Int64)})


def evaluations_frame(paths: Paths) -> pl.DataFrame:
    """Return one row for each number of each evaluated checkpoint, in the order of their steps."""
    rows = []
    for one in every_evaluation(paths):
        judged = verdicts(one)
        rows += [_number(one, row, judged.get(row.name, Verdict())) for row in one.rows.values()]
    return pl.DataFrame(rows, schema=EVALUATIONS).sort("step", maintain_order=True)


def _number(evaluation: Evaluation, row: MetricRow, judged: Verdict) -> Row:
    record = evaluation.record
    cells: Row = {"link": evaluation.name, "step": record.step, "part": evaluation.part}
    cells |= {"events": record.events, "groups": record.groups}
    cells |= {"metric": row.name, "title": row.title, "declared": row.metric is not None}
    cells |= {"better": row.better, "ideal": row.ideal, "verdict": judged.word, "text": judged.text}
    floor = next((kind for kind in FLOORS if kind in row.numbers), "")
    for column, value, error in (
        (MODEL, "value", "error"),
        (floor, "floor", "floor_error"),
        (BASELINE, "baseline", "baseline_error"),
    ):
        if column in row.numbers:
            cells[value], cells[error] = row.numbers[column]
    return cells
