"""A run and its campaign, opened from Python (`crpipe.open`): tables, batches of events, trained models."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from crpipe.campaign.ledger import read_sums_if_any, table_keys
from crpipe.campaign.view import CampaignView, read_layout
from crpipe.cli.jobs.report import view_of
from crpipe.config.files import config_files
from crpipe.config.loading import load_config
from crpipe.core.causes import is_plain
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.files import digest, read_json, read_json_if_any
from crpipe.core.paths import BEST, DESTINATIONS, OUTLIERS, Paths
from crpipe.core.ranges import Chain, ChainLink, Range
from crpipe.report.evaluations import read_evaluation
from crpipe.report.series import chain_rows
from crpipe.report.state import collect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from crpipe.api.model import EventBatches, TrainedModel
    from crpipe.config.loading import Config
    from crpipe.events.layout import Layout
    from crpipe.report.evaluations import Evaluation

# ruff: noqa: PLC0415

# The view of a campaign from its files alone: the record of a run, its receipts, and the data that fit.


Keys = dict[str, Any]
_RECORD = "campaign.json"


def recorded_view(run: Path, results: Path | None) -> CampaignView:
    """Compose the view of a run; raise DataError when the folder is no run, or ``results`` are not its data.

    results: the directory of the data; None: the one beside the run that was made with the run's keys. Where
    there is none, a view without data is given: a run that was copied alone has metrics and a model.
    """
    keys = _record_of(run)
    root = run.parent.parent
    if results is not None and not _fits(results / _RECORD, keys):
        raise DataError(
            f"{results}: not the data of {run}: {_RECORD} is missing there, or names other keys; name the "
            "directory that `results` named in the configuration of the run"
        )
    found = results or next((each for each in _candidates(root, run) if _fits(each / _RECORD, keys)), None)
    paths = Paths(found or root / "results", run.parent, run.name)
    known = () if found is None else tuple(sorted(_data_ranges(paths)))
    chain = _chain(paths, known)
    view = CampaignView(
        run=run.name,
        paths=paths,
        ranges=chain.ranges,
        skipped=(),
        chain=chain,
        data="",
        fingerprint=digest(keys),
        data_keys={},
        train_keys=keys,
        threshold=int(keys.get("split.threshold", 0)),
        disk_budget=0,
    )
    return view if found is None else _with_data(view, found)


def _with_data(view: CampaignView, results: Path) -> CampaignView:
    data_keys: Keys = read_json(results / _RECORD)
    return replace(
        view,
        data=digest(data_keys | table_keys(view.paths.tables())),
        data_keys=data_keys,
        layout=read_layout(view.paths.layout()),
    )


def has_data(view: CampaignView) -> bool:
    """Return whether the directory of the data is known."""
    return bool(view.data)


def _record_of(run: Path) -> Keys:
    if not is_plain(run / _RECORD):
        raise DataError(
            f"{run / _RECORD}: missing; name the folder of a run whose training has begun, as runs/demo"
        )
    keys: Keys = read_json(run / _RECORD)
    return keys


def _fits(record: Path, keys: Mapping[str, Any]) -> bool:
    """Return whether data were made with the same values as the run, key by key."""
    made = read_json_if_any(record)
    return made is not None and all(name in keys and keys[name] == value for name, value in made.items())


def _candidates(root: Path, run: Path) -> Iterator[Path]:
    """List the places of data, those that a configuration usually names first."""
    yield root / "results" / run.name
    yield root / "results"
    for pattern in (f"results/*/{_RECORD}", f"*/{_RECORD}"):
        yield from (path.parent for path in sorted(root.glob(pattern)))


def _data_ranges(paths: Paths) -> set[str]:
    """Name the ranges that were listed or split."""
    kinds = ((paths.manifest("x").parent, ".parquet"), (paths.ledger("x").parent, ".json"))
    return {path.name.removesuffix(end) for folder, end in kinds for path in folder.glob(f"*{end}")}


def _chain(paths: Paths, ranges: tuple[str, ...]) -> Chain:
    """Order the links by their receipts, and after them those whose training has begun."""
    folder = paths.receipt("x").parent
    receipts = [read_json(path) for path in folder.glob("*.json") if not path.name.endswith(BEST)]
    receipts.sort(key=lambda row: int(row["step"]))
    rows = [(row["range"], tuple(row["ranges"]), row["round"]) for row in receipts]
    finished = {name for name, _, _ in rows}
    begun = {path.name for path in paths.store("x").parent.glob("*") if path.is_dir()} - finished
    rows += [_begun(name, ranges) for name in sorted(begun, key=lambda each: (each == OUTLIERS, each))]
    links: list[ChainLink] = []
    trained = 0
    for name, own, turn in rows:
        parent = links[-1].name if links else ""
        links.append(ChainLink(name, own, turn, parent, trained, trained + len(own)))
        trained += len(own)
    return Chain(tuple(links), tuple(sorted({*ranges, *(name for link in links for name in link.ranges)})))


def _begun(name: str, ranges: tuple[str, ...]) -> tuple[str, tuple[str, ...], int]:
    """Give name, ranges and round of a link without a receipt: its name is its share of the campaign."""
    if name == OUTLIERS:
        return name, (), 1
    share, _, turn = name.partition(".")
    whole = Range.parse(share)
    inside = [each for each in map(Range.parse, ranges) if whole.first <= each.first <= whole.last]
    return name, tuple(map(str, inside)), int(turn or 1)


# polars and torch are imported by what uses them.

Place = str | os.PathLike[str]


class CampaignRun:
    """One run and its data, read from their files; nothing is written, and jobs may run meanwhile.

    Every property reads the files again.
    """

    def __init__(self, view: CampaignView, config: Config | None = None) -> None:
        """Take what the reports know of a campaign, and its configuration, if one was given."""
        self._view = view
        self._config = config

    def __repr__(self) -> str:
        """Name the run and its data."""
        data = self.paths.results if has_data(self._view) else None
        return f"<crpipe run {self.paths.run_dir()}, data {data}>"

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._view.run

    @property
    def paths(self) -> Paths:
        """Where every file of the campaign is."""
        return self._view.paths

    @property
    def layout(self) -> Layout:
        """Names, types, units and legal values of the columns of events and items.

        Raise DataError when the data were not found, or none were made yet.
        """
        layout = self._data().layout
        if layout is None:
            raise DataError(f"{self.paths.layout()}: missing; the first job of a campaign writes it")
        return layout

    @property
    def ranges(self) -> pl.DataFrame:
        """One row for each range: range, state, files, quarantined, events, items, and events by destination.

        The destinations are train, validation, test, outliers, validation_outliers, test_outliers and
        rejected; together they are ``events``.
        Null where a range is not that far. Without a configuration, only ranges that were listed are known.
        """
        return ranges_frame(self._data())

    @property
    def links(self) -> pl.DataFrame:
        """One row for each link of training: link, state, round, ranges, step, events, items, checkpoint, ….

        step, events, items: of the whole chain up to this link. best_*: of its best checkpoint, if one is
        kept. Without a configuration, only links whose training has begun are known.
        """
        return links_frame(self._view)

    @property
    def metrics(self) -> pl.DataFrame:
        """One row for each logged step, over the whole chain: step, link, events, items, losses, speed, ….

        A metric is called PHASE/NAME, one of a validation validation/NAME; null in steps that did not log it.
        """
        return metrics_frame(self._view)

    @property
    def evaluations(self) -> pl.DataFrame:
        """One row for each number of each evaluated checkpoint: link, step, metric, value, error, floor, ….

        floor: the same number for a second simulation of the same events, the best that is possible.
        baseline: for a simple method without the model. Null where the workload offers none.
        declared: whether the reports show it. better: low, high or near (its ``ideal``).
        """
        return evaluations_frame(self._view)

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
        ranges: their names; without any, all that are split.
        batch_events: most events of a batch. epochs: how often each event comes. seed: of the order.

        Raise ConfigError for an unknown part, DataError for a range that is not split, ShardError for a
        damaged shard.
        """
        from crpipe.api.model import open_batches

        view = self._data()
        return open_batches(view, part, ranges, batch_events=batch_events, epochs=epochs, seed=seed)

    def model(self, link: str = "latest", *, device: str = "cpu") -> TrainedModel:
        """Load a trained model: of the latest checkpoint, the ``best`` one, a LINK, LINK.best, or a file.

        device: cpu, cuda, or auto (a GPU when there is one). torch is imported here, which takes seconds.

        Raise CheckpointError when there is no such checkpoint or it is damaged; also when it names a workload
        that is not part of crpipe, unless the campaign was opened with its configuration.
        """
        from crpipe.api.model import TrainedModel
        from crpipe.campaign.ledger import table_keys, table_paths
        from crpipe.inference.checkpoints import find_checkpoint, open_checkpoint
        from crpipe.train.ranks import find_device

        record, config = self.paths.tables(), self._config
        tables, place = table_paths(record), find_device(device)
        trained = open_checkpoint(
            find_checkpoint(link, self.paths, lambda: self._view.chain.names),
            place,
            tables,
            table_keys(record),
            config.use_options() if config else {},
            (config.train.workload, config.source.reader) if config else (),
        )
        return TrainedModel(trained, tables, place)

    def _data(self) -> CampaignView:
        if not has_data(self._view):
            run = self.paths.run_dir()
            raise DataError(
                f"{run}: the data of this run were not found beside it; name their directory: "
                f'crpipe.open("{run}", results="DIRECTORY")'
            )
        return self._view


def open_run(
    run: Place, *, results: Place | None = None, config: Place | Iterable[Place] | None = None
) -> CampaignRun:
    """Open a run; see ``crpipe.open``, which calls this."""
    folder = Path(run).absolute()
    found = Path(results) if results is not None else None
    if config is None:
        return CampaignRun(recorded_view(folder, found))
    files = [config] if isinstance(config, str | os.PathLike) else list(config)
    root = folder.parent.parent
    mine = [Path(each).absolute() for each in files]
    named = [root / path for path in config_files(mine, here=root, environ={})]
    loaded = load_config(named)
    if loaded.run != folder.name:
        raise ConfigError(
            f"run: {loaded.run} in {named[-1]}, but the folder is {folder}; name its own configuration"
        )
    places = {"results": found or root / loaded.results, "runs": folder.parent}
    settings = load_config(named, [f"{name}={json.dumps(str(place))}" for name, place in places.items()])
    return CampaignRun(view_of(settings), settings)


# Tables of a campaign as polars frames: ranges, links, metrics and evaluations.


Row = dict[str, Any]
_FLOOR = "again"  # the numbers of a second simulation
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
    **dict.fromkeys(("value", "error", "floor", "floor_error", "baseline", "baseline_error"), pl.Float64),
}


def ranges_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each range, in order; null where nothing is known yet."""
    rows: list[Row] = []
    for status in collect(view).ranges:
        if status.name == OUTLIERS:
            continue
        row: Row = {"range": status.name, "state": str(status.state), "files": status.files}
        row["quarantined"] = status.quarantined
        ledger = read_sums_if_any(view.paths.ledger(status.name))
        if ledger is not None:
            row |= {"events": ledger["events"]["listed"], "items": ledger["items"]["listed"]}
            row |= {name: ledger["events"][name] for name in DESTINATIONS}
        rows.append(row)
    return pl.DataFrame(rows, schema=RANGES)


def links_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each link, in the order of the chain."""
    rows: list[Row] = []
    for status in collect(view).links:
        row: Row = {"link": status.name, "state": str(status.state), "round": status.round}
        row |= {"ranges": list(status.ranges), "step": status.step, "stopped": status.stopped}
        receipt = read_json_if_any(view.paths.receipt(status.name))
        if receipt is not None:
            row |= {name: receipt[name] for name in ("step", "events", "items", "skipped")}
            row["checkpoint"] = str(view.paths.store(status.name) / receipt["checkpoint"])
        best = read_json_if_any(view.paths.best_receipt(status.name))
        if best is not None:
            row |= {f"best_{name}": best[name] for name in ("step", "metric", "value")}
        rows.append(row)
    return pl.DataFrame(rows, schema=LINKS)


def metrics_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each logged step of the chain; ``range`` of metrics.jsonl is called ``link``."""
    rows = chain_rows(view)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "range":
            columns["link"] = pl.Series(values, dtype=pl.String)
        else:
            whole = all(isinstance(value, int) for value in values if value is not None)
            kind: Any = int if whole else float
            numbers = [None if value is None else kind(value) for value in values]
            columns[name] = pl.Series(numbers, dtype=pl.Int64 if whole else pl.Float64)
    return pl.DataFrame(columns or {"step": pl.Series([], dtype=pl.Int64)})


def evaluations_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each number of each evaluated checkpoint, in the order of their steps."""
    found = [row for folder in _evaluated(view) for row in _numbers(view, folder)]
    return pl.DataFrame(found, schema=EVALUATIONS).sort("step", maintain_order=True)


def _evaluated(view: CampaignView) -> list[Path]:
    return sorted(path.parent for path in view.paths.evaluation("x").parent.glob("*/metrics.json"))


def _numbers(view: CampaignView, folder: Path) -> Iterator[Row]:
    path = folder / "metrics.json"
    tree = read_json_if_any(path) or {}
    names = view.chain.names
    place = names.index(folder.name) + 1 if folder.name in names else 0
    evaluation = read_evaluation(place, folder.name, path, tree)
    about = {"link": folder.name, "step": tree.get("step"), "part": evaluation.part}
    about |= {"events": evaluation.events, "groups": evaluation.groups}
    declared = {measure.name for measure in evaluation.declared}
    for measure in [*evaluation.declared, *evaluation.undeclared()]:
        row = {"metric": measure.name, "title": measure.title, "declared": measure.name in declared}
        yield (
            about
            | row
            | {"better": measure.better, "ideal": measure.ideal}
            | _values(evaluation, measure.name)
        )


def _values(evaluation: Evaluation, name: str) -> Row:
    row: Row = {}
    columns = {"value": "values", "floor": _FLOOR, "baseline": "baseline"}
    for column, key in columns.items():
        number = evaluation.number(key, name)
        if number is not None:
            row[column], row["error" if column == "value" else f"{column}_error"] = number
    return row
