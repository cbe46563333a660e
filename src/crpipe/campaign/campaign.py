"""The one description of a campaign: every step, report and check gets it, and asks nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from crpipe.campaign.recorded import RunRecord, read_run, replaced_links
from crpipe.campaign.records import (
    ChosenThreshold,
    Receipt,
    SkippedRange,
    Tables,
    table_keys,
    table_paths,
)
from crpipe.config.loading import Config, Tree, validate
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, DataError, LayoutError
from crpipe.core.files import GIB, digest, free_bytes, read_json_if_any
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.campaign.readers import ReaderChoice
    from crpipe.core.paths import Paths
    from crpipe.core.ranges import Chain

# ruff: noqa: PLC0415 - readers import pyarrow, and `status` has to start without it.

ITEMS = "items"  # the word for items as long as the layout is unknown
_SHARE = 0.8  # of the space, for raw copies
LayoutFrom = Literal["reader", "recorded", "either"]  # of a campaign that is opened


@dataclass(frozen=True)
class Campaign:
    """A campaign and one of its runs.

    known_layout: columns of events and items; None where no job recorded them and the reader was not asked.
    table_keys: hashes of the side tables, known once they are staged.
    recorded: what the run's files say, where they are all that is known; else the configuration counts.
    """

    config: Config
    paths: Paths
    known_layout: Layout | None
    table_keys: Tree
    recorded: RunRecord | None = None

    @classmethod
    def open(cls, config: Config, layout: LayoutFrom = "reader") -> Campaign:
        """Read what follows from a configuration: the layout, and the hashes of side tables that are staged.

        layout: "reader" imports the reader and asks it; "recorded" takes what a job has recorded, if any, and
        needs no reader: where a package is not installed here, the keys are recorded ones, too; "either" asks
        the reader where nothing is recorded. Raise ConfigError for a reader that is none, DataError for a
        damaged record.
        """
        paths = config.paths()
        known_layout = None if layout == "reader" else recorded_layout(paths.layout())
        if known_layout is None and layout != "recorded":
            known_layout = _layout_of_reader(config)
        campaign = cls(config, paths, known_layout, table_keys(paths.tables()))
        if layout != "recorded" or config.has_packages():
            return campaign
        keys = (read_json_if_any(path) for path in (paths.campaign(), paths.run_config()))
        data_keys, train_keys = ({} if each is None else each for each in keys)
        record = RunRecord(campaign.chain, data_keys, train_keys, config.given_up())
        return replace(campaign, recorded=record)

    @classmethod
    def of_run(cls, run: Path, results: Path | None = None) -> Campaign:
        """Read a campaign from the folder of a run and its data, without a configuration.

        results: the directory of the data; None: the one beside the run that was made with the run's keys. A
        run without any has no data: one that was copied alone has metrics and a model. Raise DataError when
        the folder is no run, or ``results`` are not its data.
        """
        paths, record = read_run(run, results)
        threshold = record.train_keys.get("split.threshold")
        config = validate({} if threshold is None else {"split": {"outlier_above": threshold}})
        known_layout = None if record.data_keys is None else recorded_layout(paths.layout())
        return cls(config, paths, known_layout, table_keys(paths.tables()), record)

    def is_finished(self) -> bool:
        """Return whether every link of the chain has its receipt; not before its files are counted."""
        try:
            receipts = self.receipts()
            return len(receipts) == len(self.chain.links) and not self.replaced(receipts)
        except (ConfigError, DataError):  # a damaged receipt is made again
            return False

    def receipts(self) -> dict[str, Receipt]:
        """Read the receipts of the finished links; raise DataError for a damaged one."""
        rows = {name: Receipt.read_if_any(self.paths.receipt(name)) for name in self.chain.names}
        return {name: row for name, row in rows.items() if row is not None}

    def replaced(self, receipts: Mapping[str, Receipt]) -> frozenset[str]:
        """Name the finished links that no longer follow from the chain, and are trained again."""
        if self.recorded is not None:  # a chain that is made of the receipts
            return frozenset()
        return replaced_links(self.chain, receipts, pretrained=bool(self.config.train.pretrained))

    def receipt_to_evaluate(self, name: str) -> Path:
        """Return the receipt of the checkpoint of a link that ``evaluate.checkpoint`` chooses."""
        best = self.paths.best_receipt(name)
        use_best = self.config.evaluate.checkpoint == "best" and is_present(best)
        return best if use_best else self.paths.receipt(name)

    @property
    def layout(self) -> Layout:
        """Columns of events and items; DataError where they are not known."""
        if self.known_layout is None:
            raise DataError(f"{self.paths.layout()}: missing; the first job of a campaign writes it")
        return self.known_layout

    @cached_property
    def ranges(self) -> tuple[str, ...]:
        """Names in order, without the skipped ones; ConfigError as long as their files are not counted."""
        if self.recorded is not None:
            return self.recorded.chain.ranges
        return tuple(str(name) for name in self.config.all_ranges())

    @property
    def given_up(self) -> tuple[SkippedRange, ...]:
        """The ranges that ``ranges.on_failure: skip`` left out; DataError for a damaged record."""
        names = self.config.given_up() if self.recorded is None else self.recorded.given_up
        return tuple(SkippedRange.read(self.paths.skipped(name)) for name in names)

    @cached_property
    def chain(self) -> Chain:
        """The links of training; ConfigError as long as the files of the source are not counted."""
        if self.recorded is not None:
            return self.recorded.chain
        return self.config.chain(has_outliers=self.has_outliers)

    @cached_property
    def data_keys(self) -> Tree:
        """What the shards follow from: configured keys and the layout, by dotted names, in recorded order."""
        if self.recorded is not None:
            return self.recorded.data_keys or {}
        return {**self.config.data_keys(), **self._identity()}

    @cached_property
    def train_keys(self) -> Tree:
        """What the checkpoints follow from: all of ``data_keys`` and the keys of training."""
        if self.recorded is not None:
            return self.recorded.train_keys
        return {**self.config.train_keys(), **self._identity()}

    def _identity(self) -> Tree:
        return {} if self.known_layout is None else self.known_layout.identity()

    @property
    def run_keys(self) -> Tree:
        """Everything that changes a checkpoint, as a run records it."""
        return {**self.train_keys, **({} if self.recorded else self.table_keys)}

    @cached_property
    def data(self) -> str:
        """Hash of everything that changes a shard; empty where the data or their layout are not known."""
        has_data = (
            self.known_layout is not None if self.recorded is None else self.recorded.data_keys is not None
        )
        return digest({**self.data_keys, **self.table_keys}) if has_data else ""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that changes a checkpoint; empty as long as the layout is unknown."""
        return digest(self.run_keys) if self.known_layout is not None or self.recorded else ""

    @property
    def has_outliers(self) -> bool:
        """Whether events can be outliers: not when all of them have the same size."""
        return self.known_layout is None or self.known_layout.has_outliers()

    @property
    def item(self) -> str:
        """Plural noun for what an event contains."""
        return ITEMS if self.known_layout is None else self.known_layout.item

    @cached_property
    def simulated_tables(self) -> tuple[str, ...]:
        """Side tables that the simulator writes; none where the raw files are not simulated."""
        from crpipe.campaign.simulators import offered_tables, open_simulator

        if not self.config.simulates():
            return ()
        return offered_tables(open_simulator(self.config.source.simulator, self.config.options("simulator")))

    @cached_property
    def tables(self) -> Tables:
        """The copies of the side tables; DataError when one is missing or has another size."""
        return table_paths(self.paths.tables())

    @property
    def has_tables(self) -> bool:
        """Whether side tables are staged before anything is split."""
        return bool(self.config.source.tables or self.simulated_tables)

    @property
    def reader(self) -> ReaderChoice:
        """The reader of the raw files, its options and the side tables; ``open`` builds it."""
        from crpipe.campaign.readers import ReaderChoice

        return ReaderChoice(self.config.source.reader, self.config.options("reader"), self.tables)

    def threshold(self) -> int:
        """Return the multiplicity above which an event is an outlier.

        Raise DataError when ``split.quantile`` is set and the threshold is not chosen yet, ConfigError when
        it would make an outlier of every event.
        """
        split = self.config.split
        if split.quantile is None:
            threshold = split.outlier_above
        else:
            threshold = ChosenThreshold.read(self.paths.threshold()).threshold
        if self.known_layout is not None:
            check_threshold(self.known_layout, threshold)
        return threshold

    def raw_budget(self, taken: int) -> int:
        """Return the bytes that raw copies may take at once; ``taken``: bytes that they take now."""
        asked = self.config.source.disk_budget_gib
        return round(asked * GIB) if asked else int(_SHARE * (free_bytes(self.paths.results) + taken))


def recorded_layout(path: Path) -> Layout | None:
    """Read ``layout.json``, ``None`` when it does not exist; raise DataError when it is something else."""
    tree = read_json_if_any(path)
    try:
        return None if tree is None else Layout.from_description(tree)
    except LayoutError as error:
        raise DataError(
            f"{path}: {error}; delete it and campaign.json beside it: the next job writes both again"
        ) from error


def _layout_of_reader(config: Config) -> Layout:
    from crpipe.campaign.readers import open_reader

    return open_reader(config.source.reader, config.options("reader")).layout


def check_threshold(layout: Layout, threshold: int) -> None:
    """Raise ConfigError when the threshold makes an outlier of every event of a layout of fixed size."""
    if threshold < layout.fixed:
        raise ConfigError(
            f"split.outlier_above: {threshold} is below the {layout.fixed} {layout.item} of every event, so "
            f"that all would be outliers; set it to {layout.fixed} or more"
        )
