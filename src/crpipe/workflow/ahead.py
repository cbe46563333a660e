"""The commands of a small campaign in one process, before any job: to start one takes longer than most.

They are those of the jobs, with their logs; what is not done after a minute, or fails, is left to the jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from itertools import chain, dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.errors import CrpipeError
from crpipe.core.files import disk_errors, make_folder
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import Range
from crpipe.core.signals import STOP_SIGNALS
from crpipe.core.text import Progress, counted, duration, printable
from crpipe.report.figure_context import FORMATS
from crpipe.report.gallery import gather
from crpipe.source.listing import take_files
from crpipe.source.range_files import SourceFiles, are_copied
from crpipe.source.retries import Deadline
from crpipe.source.uris import SourceOptions, SourcePattern
from crpipe.workflow.rules import TARGETS, probe_option, reference_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from crpipe.campaign.campaign import Campaign

LIMIT_S = 60.0  # of all commands together
_FEW_BYTES = 1 << 28  # of raw files: all are split within minutes
_LOOK_S = 10.0
_ASK_S = 1.0
GALLERY = "gallery"  # no verb: it copies files
_OF_DATA = ("config", "tables", "list", "stage", "threshold", "split")  # of one range each, or of none
_LONG = ("train", "evaluate")  # a person is told that they begin


@dataclass(frozen=True, slots=True)
class Command:
    """What a job would run. log: the file that it would write to. outputs: those that its rule declares."""

    words: tuple[str, ...]
    log: Path
    outputs: tuple[Path, ...]

    def is_done(self) -> bool:
        """Return whether nothing has to be run."""
        return all(map(is_present, self.outputs))


def commands(campaign: Campaign, targets: Collection[str]) -> Iterator[Command]:
    """Yield what ``targets`` need, each link right after the ranges that it trains on."""
    wanted, train = {*targets}, campaign.config.train
    trains = wanted != {"outliers_consolidated"} and train.nodes * train.processes_of_node == 1
    if trains:
        yield Command(("config", "check"), Path(os.devnull), (campaign.paths.run_config(),))
    data = _of_data(campaign)
    yield from data.pop("")
    for link in campaign.chain.links if trains else ():
        yield from chain.from_iterable(data.pop(name, ()) for name in link.ranges)
        if link.name != OUTLIERS:
            yield _training(campaign, link.name)
    yield from chain.from_iterable(data.values())
    if campaign.has_outliers and wanted != {"train_all"}:
        manifest = campaign.paths.outlier_manifest(CONSOLIDATED)
        outputs = manifest, manifest.with_name("index.parquet")
        yield Command(("consolidate",), campaign.paths.results / "logs/consolidate.log", outputs)
        yield from (_training(campaign, name) for name in campaign.chain.names if trains and name == OUTLIERS)
    yield from _of_results(campaign, wanted) if trains else ()


def _of_results(campaign: Campaign, wanted: Collection[str]) -> Iterator[Command]:
    """Yield the commands that judge checkpoints and plot."""
    names = campaign.chain.names if "progress" in wanted else campaign.chain.names[-1:]
    for name in names if {"all", "evaluation", "progress"} & {*wanted} else ():
        folder = campaign.paths.evaluation(name)
        outputs = folder / "metrics.json", folder / "predictions.parquet"
        yield Command(("evaluate", name), _log(campaign, "evaluate", name), outputs)
    figures, logs = campaign.paths.figures(), campaign.paths.run_dir() / "logs"
    if "progress" in wanted:
        files = tuple(figures / f"progress{kind}" for kind in FORMATS)
        yield Command(("figures", "--progress"), logs / "progress.log", files)
    if "all" in wanted:
        plots = "multiplicity", "losses", "gradients", "throughput"
        files = tuple(figures / f"{name}{kind}" for name in plots for kind in FORMATS)
        yield Command(("figures",), logs / "figures.log", files)
        yield Command((GALLERY,), logs / f"{GALLERY}.log", (figures / "evaluation",))


def _of_data(campaign: Campaign) -> dict[str, list[Command]]:
    """List the commands that make shards of each range; under "" what all of them need before."""
    paths, logs = campaign.paths, campaign.paths.results / "logs"
    data: dict[str, list[Command]] = {"": []}
    if campaign.has_tables:
        data[""].append(Command(("tables",), logs / "tables.log", (paths.tables(),)))
    reference = reference_ranges(campaign)
    for name in campaign.ranges:
        split = Command(("split", name), _log(campaign, "split", name), paths.split_outputs(name))
        staging = [
            Command(("list", name), _log(campaign, "list", name), (paths.manifest(name),)),
            Command(("stage", name), _log(campaign, "stage", name), (paths.staged(name),)),
        ]
        before = data[""] if name in reference else data.setdefault(name, [])
        before += [] if split.is_done() else staging
        data.setdefault(name, []).append(split)
    if reference:
        data[""].append(Command(("threshold",), logs / "threshold.log", (paths.threshold(),)))
    return data


def _training(campaign: Campaign, name: str) -> Command:
    words = ("train", name, *probe_option(campaign, name))
    return Command(words, _log(campaign, "train", name), (campaign.paths.receipt(name),))


def _log(campaign: Campaign, verb: str, name: str) -> Path:
    folder = campaign.paths.run_dir() if verb in ("train", "evaluate") else campaign.paths.results
    return folder / "logs" / verb / f"{name}.log"


def is_left(campaign: Campaign, targets: Collection[str]) -> bool:
    """Return whether something of whole ``targets`` is left to do, and nothing that follows from it is there.

    What is there would have to be made again: that is Snakemake's to know.
    """
    if not {*targets} <= {*TARGETS}:
        return False
    left = list(dropwhile(Command.is_done, commands(campaign, targets)))
    return bool(left) and not any(each.is_done() for each in left if each.words[0] not in _OF_DATA)


def has_few_files(campaign: Campaign) -> bool:
    """Return whether the raw files are few, and read in place.

    Others take a process long enough, and several of them side by side are faster.
    A source that cannot be listed is left to the job that lists it.
    """
    config = campaign.config
    if config.packs:
        return False
    source = SourceFiles(SourcePattern.of(config), SourceOptions.of(config), Deadline(_LOOK_S, "the source"))
    end, size = time.monotonic() + _ASK_S, 0
    for name in campaign.ranges:
        try:
            if are_copied(config, name) or time.monotonic() > end:
                return False
            files = take_files(config, name, source.of_range(Range.parse(name)))
        except CrpipeError:
            return False
        size += sum(file.size or 0 for file in files)
        if size > _FEW_BYTES:
            return False
    return True


def work_ahead(
    campaign: Campaign,
    targets: Collection[str],
    call: Callable[[Sequence[str]], None],
    progress: Progress,
    ends: Sequence[Sequence[str]] = (),
) -> None:
    """Run one command after the other, until all is done, one fails, or a minute is over.

    Raise what the check of the configuration raises: no job would fare better.

    call: runs a verb, in this process. ends: commands for the end, where everything is done; their output is
    this process's own.
    """
    begun, done, paths = time.monotonic(), 0, campaign.paths
    for command in commands(campaign, targets):
        if command.is_done():
            continue
        left_s = begun + LIMIT_S - time.monotonic()
        if left_s <= 0:
            return
        verb, *names = command.words
        limit = ("--max-minutes", f"{left_s / 60:.4f}") if verb == "train" else ()  # a job resumes it
        if verb in _LONG:
            progress.message(" ".join((verb, *names[:1])))
        try:
            with _keeping_signal_handlers(), _printing_to(command.log):
                if verb == GALLERY:
                    gather(paths.evaluation(campaign.chain.names[-1]), paths.figures() / "evaluation")
                else:
                    call((*command.words, *limit))
        except CrpipeError as error:
            if verb == "config":
                raise
            progress.message(
                f"{' '.join((verb, *names[:1]))}: {type(error).__name__}; its own job tries again"
            )
            return
        if verb == "split":
            paths.staged(names[0]).unlink(missing_ok=True)
        done += 1
    took = duration(time.monotonic() - begun)
    progress.message(f"{counted(done, 'step')} done in one process in {took}, without jobs")
    for words in ends:
        with contextlib.suppress(CrpipeError):
            call(words)


@contextlib.contextmanager
def _keeping_signal_handlers() -> Iterator[None]:
    """Training takes the signals of its process: give them back."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Write what this process prints to a file, also what libraries in C print."""
    kept = os.dup(1), os.dup(2)
    with disk_errors(log):
        make_folder(log.parent)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for number in (1, 2):
            os.dup2(file, number)
        os.close(file)
        yield
    except CrpipeError as error:
        with contextlib.suppress(OSError):
            os.write(2, printable(f"crpipe: {error}\n", keep="\n").encode())
        raise
    finally:
        for number, stream, copy in ((1, sys.stdout, kept[0]), (2, sys.stderr, kept[1])):
            with contextlib.suppress(OSError):
                stream.flush()
            os.dup2(copy, number)
            os.close(copy)
