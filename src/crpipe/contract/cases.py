"""What the contract is tried on: a configuration of plug-ins, raw files for it, and a few of their events."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
import yaml

from crpipe.campaign.readers import CheckedReader, ReaderChoice
from crpipe.campaign.simulators import (
    Simulator,
    file_names,
    open_simulator,
    simulate_range,
    written_tables,
)
from crpipe.config.loading import Config, read_tree, validate
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import ConfigError, CrpipeError
from crpipe.core.text import NullProgress
from crpipe.events.batch import Events, concatenate
from crpipe.events.histograms import count_columns
from crpipe.inference.checkpoints import LoadedModel
from crpipe.inference.inputs import RawInput
from crpipe.source.preview import list_now
from crpipe.source.uris import host_and_path
from crpipe.train.answers import collated, model_of
from crpipe.train.workload import Batch, Fits, Workload, give_histograms, open_workload, with_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.core.ranges import Range
    from crpipe.events.layout import Layout

KEYS = {"reader": "source.reader", "simulator": "source.simulator", "workload": "train.workload"}
MOST_EVENTS = 64
WEIGHTS = "contract_weight"  # event column of the contract's own weights, where the layout has none
_SHIPPED = "contract.yaml"  # what all cases of a workload share, and the cases


class NotChecked(CrpipeError):  # noqa: N818 - no error
    """Says why a check has nothing to look at in a case."""


def skip(reason: str) -> NoReturn:
    """End a check that has nothing to look at."""
    raise NotChecked(reason)


Run = Callable[["Case"], None]


@dataclass(frozen=True, slots=True)
class Check:
    """One law of the contract: raises PluginError where a case breaks it, NotChecked where it is not asked.

    kind: of the plug-in. slow: takes more than 2 s with a small model. doubt: a workload may mean what breaks
    it, or chance may: a first job warns only.
    """

    kind: str
    run: Run
    slow: bool
    doubt: bool

    @property
    def name(self) -> str:
        """The law in words."""
        return self.run.__name__

    def __call__(self, case: Case) -> None:
        """Check a case; what a plug-in raises becomes a PluginError."""
        with plugin_errors(f"{case.plugin(self.kind)} failed"):
            self.run(case)


CHECKS: list[Check] = []


def check(kind: str, *, slow: bool = False, doubt: bool = False) -> Callable[[Run], Run]:
    """Add a function to the checks of a kind of plug-in."""

    def add(run: Run) -> Run:
        CHECKS.append(Check(kind, run, slow, doubt))
        return run

    return add


@dataclass(frozen=True, slots=True)
class Taken:
    """Some events, and verified copies of the side tables, that a campaign has already."""

    events: Events
    tables: Mapping[str, Path]


class Case:
    """One configuration: its plug-ins, built anew for each use, raw files, and some of their events."""

    def __init__(self, config: Config, data: Sequence[Path] = (), taken: Taken | None = None) -> None:
        """Name the plug-ins.

        data: raw files, empty: those of the simulator, or of source.uri. taken: from a campaign that exists.
        """
        self.config = config
        self._taken = taken
        self.name = config.run
        self._data = tuple(data)
        self.folder = Path(tempfile.mkdtemp(prefix="crpipe-contract-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def plugin(self, kind: str) -> str:
        """Name the reader, simulator or workload as module:Name; empty: the case has none."""
        section, _, key = KEYS[kind].partition(".")
        name: str = getattr(getattr(self.config, section), key)
        return name

    @property
    def has_files(self) -> bool:
        """Whether there are raw files to read, besides events that were taken from elsewhere."""
        return self._taken is None or bool(self._data)

    @property
    def rejects(self) -> bool:
        """Whether events with illegal values are left out, and no error of the reader."""
        return self.config.split.on_bad_event == "reject"

    def scratch(self) -> Path:
        """Make an empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def has(self, kind: str) -> bool:
        """Return whether the case names a reader, simulator or workload."""
        return bool(self.plugin(kind))

    def plugin_key(self, kind: str) -> tuple[str, str]:
        """Return what makes two cases of one kind of plug-in the same: its name and options."""
        options = self.config.options("model" if kind == "workload" else kind)
        return self.plugin(kind), repr((options, self._data if kind == "reader" else ()))

    def simulator(self) -> Simulator:
        """Build the simulator."""
        return open_simulator(self.plugin("simulator"), self.config.options("simulator"))

    def reader(self) -> CheckedReader:
        """Build the reader, whose blocks are then compared with its layout."""
        return ReaderChoice(self.plugin("reader"), self.config.options("reader"), self.tables).open()

    def workload(self) -> Workload:
        """Build the workload, with its side tables and histograms."""
        name = self.plugin("workload")
        workload = open_workload(name, self.config.options(), self.tables)
        histograms = count_columns(self.events.columns, self.config.split.histograms)
        give_histograms(workload, name, histograms)
        return workload

    def trained(self, seed: int = 1) -> LoadedModel:
        """Return a workload with fresh weights and its fit, in the form of a trained one in the engine."""
        workload = self.workload()
        torch.manual_seed(seed)
        model = model_of(workload).eval()
        with torch.no_grad():  # many a layer begins with zeros, behind which nothing would be seen
            for weight in model.parameters():
                weight.add_(0.02 * torch.randn(weight.shape))
            if isinstance(workload, Fits):
                workload.fit(model, [self.events])
        counters = {"counters": {"step": 0}}
        return LoadedModel(self.folder, self.plugin("workload"), workload, model, counters, "")

    @property
    def layout(self) -> Layout:
        """The columns that the reader declares."""
        return self._reader.layout

    @cached_property
    def _reader(self) -> CheckedReader:
        return self.reader()

    @property
    def range(self) -> Range:
        """The first range of the campaign."""
        return self.config.all_ranges()[0]

    @cached_property
    def tables(self) -> Mapping[str, Path]:
        """The side tables: those of the simulator, and local files of source.tables."""
        if self._taken is not None:
            return self._taken.tables
        tables = {name: Path(uri.removeprefix("file://")) for name, uri in self.config.source.tables.items()}
        missing = [f"source.tables.{name}: {path}" for name, path in tables.items() if not path.is_file()]
        if missing:
            raise ConfigError(f"{missing[0]}: no file on this machine; copy the table, and name the copy")
        if self.plugin("simulator"):
            tables |= written_tables(self.simulator(), self.folder / "tables")
        return tables

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Raw files: those that were named, else the simulator's, else the first ones of the first range."""
        if self._data:
            return self._data
        if self.plugin("simulator"):
            simulator, raw = self.simulator(), self.folder / "raw"
            simulate_range(simulator, self.range, self.config.seed, raw, NullProgress())
            return tuple(raw / name for name in file_names(simulator, self.range))
        if self.config.source.convert:
            raise ConfigError(
                "source.convert: its outputs are read, not raw files: name one with --in, or split"
            )
        listings = list_now(self.config, self.config.all_ranges()[:1], offline=True)
        entries = [entry for listed in listings.files.values() for entry in listed[:2]]
        if not entries:
            why = "; ".join(listings.problems) or "the source is not on this machine"
            raise ConfigError(f"no raw files to try: {why}; or name some with --in (pytest: --crpipe-data)")
        return tuple(Path(host_and_path(entry.uri)[1]) for entry in entries)

    @cached_property
    def events(self) -> Events:
        """The first events of the raw files that training would see: no outliers, no rejected ones."""
        if self._taken is not None:
            return self._taken.events
        most, threshold = min(self.config.load.batch_size, MOST_EVENTS), self.config.split.outlier_above
        blocks: list[Events] = []
        raw = RawInput(self.files, self._reader.reader, self.tables, self.rejects)
        for block in raw.blocks(most, 1 << 62):
            few = np.flatnonzero(block.multiplicity <= threshold) if not self.layout.fixed else None
            blocks.append(block if few is None else block.take(few))
            if sum(map(len, blocks)) >= most:
                break
        events = concatenate(blocks) if blocks else None
        if events is None or not len(events):
            raise ConfigError(f"{self.files[0]}: no event to try the contract on; name other files")
        return events.part(0, min(most, len(events))).copy()

    def batch(
        self,
        workload: Workload,
        events: Events,
        index: NDArray[Any] | None = None,
        seed: tuple[int, ...] = (),
    ) -> Batch:
        """Collate events as the trainer does, with their weights; PluginError when collate raises."""
        indices = np.arange(len(events)) if index is None else index
        batch = collated(workload, events, indices, seed)
        weight = self.layout.weight or (WEIGHTS if WEIGHTS in events.columns else "")
        return with_weights(batch, events, indices, weight)

    def weighted(self, events: Events, weights: NDArray[Any]) -> Events:
        """Return the events with other weights, in the column of the layout if it has one."""
        name = self.layout.weight or WEIGHTS
        kind = events.columns[name].dtype if self.layout.weight else np.float32
        return Events({**events.columns, name: weights.astype(kind)}, events.multiplicity, events.items)

    def weights(self, events: Events) -> NDArray[Any]:
        """Return how much each event counts: [N]; 1 where nothing weighs them."""
        column: NDArray[Any] = events.columns.get(self.layout.weight or WEIGHTS, np.ones(len(events)))
        return column

    def without_items(self, events: Events, number: int) -> Events:
        """Return the events, one of them without its items."""
        ends, counts = events.offsets(), events.multiplicity.copy()
        counts[number] = 0
        items = np.delete(events.items, slice(ends[number], ends[number + 1]), axis=0)
        return Events(events.columns, counts, items)

    def with_gap(self) -> Events:
        """Return the events, one in the middle without items where the layout allows it."""
        return self.events if self.layout.fixed else self.without_items(self.events, len(self.events) // 2)


def cases_of(paths: Sequence[str], keys: Sequence[str], data: Sequence[str]) -> Case:
    """Return the case of configuration files, further keys and raw files; a URI is needed by no test."""
    tree, origin = read_tree([Path(path) for path in paths], keys)
    tree.setdefault("run", "case")
    return Case(validate(tree, origin), [Path(path) for path in data])


def shipped_cases() -> list[Case]:
    """Return the cases of every workload of crpipe's own, from the ``contract.yaml`` in its folder."""
    workloads = files("crpipe.workloads")
    campaigns = [
        yaml.safe_load(folder.joinpath(_SHIPPED).read_text())
        for folder in sorted(workloads.iterdir(), key=lambda each: each.name)
        if folder.joinpath(_SHIPPED).is_file()
    ]
    return [
        Case(validate({"run": name, **each["always"], **tree}))
        for each in campaigns
        for name, tree in each["cases"].items()
    ]
