"""What raw files on this machine say of a new campaign: which reader reads them, and sizes that fit them."""

from __future__ import annotations

import math
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.campaign.readers import ReaderChoice, fitting_readers, readers_of_format
from crpipe.core.errors import CrpipeError
from crpipe.core.text import counted, number
from crpipe.events.file_formats import format_of
from crpipe.report.run_time import better_sizes
from crpipe.source.suggestions import pattern_of, spread, suggest_ranges
from crpipe.split.parts import add_counts
from crpipe.split.preview import recommended_threshold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.campaign.declarations import DeclaredReader
    from crpipe.config.loading import Config

SECONDS = 5.0  # of reading
_BLOCKS = 4  # of each file
_ENOUGH = 500  # held-out groups that resolve most numbers
_MOST_SHARE = 0.2  # of the groups that are held out
_FEW_EVENTS = 1_000_000  # fewer are trained on in one link
_OWN_READER = (
    "write one for it (docs/workload.md), have the files made as docs/own-data.md shows, or convert them "
    "with a command in source.convert (docs/data.md)"
)
_WARM_UP = 0.1  # share of the steps


@dataclass(frozen=True, slots=True)
class Plugins:
    """A workload by its short name, a reader of the files as module:Name, and side tables that lie there."""

    workload: str
    reader: str
    tables: Mapping[str, str] = field(default_factory=dict)


def largest(paths: Sequence[Path]) -> Path | None:
    """Return the largest of the files that are there."""
    there = [path for path in paths if path.is_file()]
    return max(there, key=lambda each: each.stat().st_size, default=None)


def fitting_plugins(
    paths: Sequence[Path],
    included: Mapping[str, Mapping[str, DeclaredReader]],
    given: Mapping[str, Path] = MappingProxyType({}),
) -> list[Plugins]:
    """Name the included readers that read the largest of the files, and their workloads.

    included: of each workload its readers, with the usual file names of their side ``tables``; those that are
    not listed, but lie beside one, count where none of these fits.
    A side table is the one that is ``given``, else taken where it lies under its usual name, in the folder of
    the file or one of the two above.
    """
    path = largest(paths)
    if path is None:
        return []
    plugins: list[Plugins] = []
    for name, listed in included.items():
        readers: dict[str, Plugins] = {}
        for reader, about in listed.items():
            tables = {**_tables_near(path, about.tables), **given}
            with suppress(CrpipeError, OSError):
                for each in fitting_readers(reader, path, tables):
                    readers.setdefault(
                        each, Plugins(name, each, {key: str(at) for key, at in tables.items()})
                    )
        known = [readers[each] for each in listed if each in readers]
        plugins += known or readers.values()
    return plugins


def why_unread(
    paths: Sequence[Path],
    included: Mapping[str, Mapping[str, DeclaredReader]],
    given: Mapping[str, Path],
) -> list[str]:
    """Describe in lines why no included reader reads the files; empty without files, and where one does.

    given: side tables, as in ``fitting_plugins``.
    """
    path = largest(paths)
    if path is None or fitting_plugins([path], included, given):
        return []
    form = format_of(path)
    return [
        f"no included reader reads {path}, {form.words}; {form.remedy or _OWN_READER}",
        *(f"  as {name}: {text}" for name, text in _refusals(path, included, given).items()),
        *(f"  files below it are read: --uri {each}" for each in _read_below(path.parent, included)),
    ]


def _read_below(folder: Path, included: Mapping[str, Mapping[str, DeclaredReader]]) -> Iterator[str]:
    """Name patterns of files in the folders of a folder that an included reader reads."""
    for each in spread(sorted(path for path in folder.iterdir() if path.is_dir())):
        pattern = pattern_of(str(each))
        with suppress(CrpipeError, OSError):
            if pattern and fitting_plugins(suggest_ranges(pattern).paths, included):
                yield shlex.quote(pattern)


def _refusals(
    path: Path, included: Mapping[str, Mapping[str, DeclaredReader]], given: Mapping[str, Path]
) -> dict[str, str]:
    """Describe why the first reader of each workload does not read a file, by workload.

    Those of another format are left out; side tables are taken as by ``fitting_plugins``.
    """
    reasons: dict[str, str] = {}
    for name, listed in included.items():
        for reader, about in listed.items():
            tables = {**_tables_near(path, about.tables), **given}
            try:
                if reader in readers_of_format(reader, path):
                    next(iter(ReaderChoice(reader, {}, tables).open().rows(path)), None)
            except (CrpipeError, OSError) as error:
                reasons.setdefault(name, str(error).removeprefix(f"{path}: "))
    return reasons


def _tables_near(path: Path, names: Mapping[str, str]) -> dict[str, Path]:
    folders = (path.parent, *path.parent.parents[:2])
    near = {key: [folder / name for folder in folders] for key, name in names.items()}
    return {key: at for key, places in near.items() if (at := next(filter(Path.is_file, places), None))}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a campaign, estimated from a few of its files.

    files: that were read. events, groups: of all files. counts: events read, by multiplicity. item: what an
    item is called; fixed: whether all events have as many.
    """

    files: int
    events: int
    groups: int
    counts: dict[int, int]
    item: str
    fixed: bool

    def describe(self) -> str:
        """Describe the sizes in one line."""
        about = f"about {counted(self.events, 'event')} in {counted(self.groups, 'group')}"
        largest = (
            "" if self.fixed else f"; the largest that was read has {number(max(self.counts))} {self.item}"
        )
        return f"{about}, estimated from {counted(self.files, 'file')}{largest}"


def measure_sizes(
    choice: ReaderChoice, paths: Sequence[Path], files: int, seconds: float = SECONDS
) -> Sizes | None:
    """Read the first blocks of some files, and scale to all ``files``; None where no event was read.

    Files that the reader refuses are left out: `crpipe plan` reports them.
    """
    end = time.monotonic() + seconds
    reader = choice.open()
    counts: dict[int, int] = {}
    totals: list[int] = []
    groups = rows = 0
    for path in paths:
        if totals and time.monotonic() > end:
            break
        with suppress(CrpipeError, OSError):
            totals.append(reader.totals(path)[0])
            for block in islice(reader.rows(path), _BLOCKS):
                add_counts(counts, block.multiplicity)
                columns = [np.ascontiguousarray(block.columns[name]) for name in reader.layout.group]
                groups, rows = groups + len(np.unique(np.rec.fromarrays(columns))), rows + len(block)
    if not rows:
        return None
    events = round(sum(totals) / len(totals) * files)
    layout = reader.layout
    return Sizes(len(totals), events, round(events * groups / rows), counts, layout.item, bool(layout.fixed))


def choose(
    config: Config, sizes: Sizes, per_step: int = 1, *, threshold: bool = True
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield keys that fit the sizes better than the configuration so far: key, value, and why in one line.

    per_step: batches that a step takes. threshold: whether split.outlier_above is free, not the
    workload's own choice.
    """
    if threshold and not sizes.fixed:
        value, aside = recommended_threshold(sizes.counts)
        share = f"{aside:.2%} of the events" if aside else "none of the events"
        yield "split.outlier_above", (value, f"{share} that were read have more {sizes.item}")
    fraction, groups = config.split.validation_fraction, sizes.groups
    if groups * fraction < _ENOUGH:
        fraction = min(_MOST_SHARE, max(fraction, math.ceil(100 * _ENOUGH / max(groups, 1)) / 100))
        held_out = f"about {counted(round(groups * fraction), 'group')} then judge the model"
        yield "split.validation_fraction", (fraction, held_out)
    yield from _steps(config, sizes.events * (1 - fraction), per_step)


def _steps(config: Config, events: float, per_step: int) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Choose batch, passes and what follows from the steps, so that there are enough of them."""
    if events > _FEW_EVENTS:
        return
    train, load = config.train, config.load
    batch, passes = better_sizes(load.batch_size, 1, events / (load.batch_size * per_step))
    passes = max(passes, train.passes_per_link)
    steps = max(1, round(passes * events / (batch * per_step)))
    takes = f", {per_step} for a step" if per_step > 1 else ""
    if batch != load.batch_size:
        yield (
            "load.batch_size",
            (
                batch,
                f"{counted(math.ceil(events / batch), 'batch', 'batches')} in a pass over all events{takes}",
            ),
        )
    if passes != train.passes_per_link:
        yield "train.passes_per_link", (passes, f"about {counted(steps, 'step')} in all")
    if train.ranges_per_link:
        yield (
            "train.ranges_per_link",
            (0, f"about {counted(round(events), 'event')}: few enough for one link"),
        )
    if train.schedule.shape != "one_cycle" and train.schedule.warmup_steps > _WARM_UP * steps:
        yield (
            "train.schedule.warmup_steps",
            (max(1, int(_WARM_UP * steps)), f"a tenth of about {counted(steps, 'step')}"),
        )
    if 10 * train.validate_every > steps:  # 0: never
        yield "train.validate_every", (max(1, steps // 10), "about ten times in the training")
