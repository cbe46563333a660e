"""`crpipe train --pack`: trains a link that came in a pack, in slices, and always leaves one file.

In: a pack, and the STATE that the slice before left, if any. Out: the result or the failure as a pack; or the
next STATE and SliceOver.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crpipe.campaign.records import TrainedSlice, read_slices
from crpipe.check.training import checkpoint_metadata
from crpipe.core.causes import is_plain
from crpipe.core.errors import (
    CheckpointError,
    ConfigError,
    CrpipeError,
    DataError,
    DiskError,
    Interrupted,
    PackError,
    SliceOver,
    TrainError,
)
from crpipe.core.files import digest, make_folder, remove_tree, rename, sha256, write_text
from crpipe.core.journal import JOURNAL_BYTES, tail
from crpipe.core.signals import STOP_SIGNALS
from crpipe.packs.archive import (
    LINK,
    LINK_OUT,
    SEND_AGAIN,
    STATE,
    new_record,
    read_record,
    refuse_other_key,
    unpack_all,
    working_folder,
    write_failure,
    write_pack,
)
from crpipe.packs.depot import Depot, fetch_referred
from crpipe.packs.links import RUNS, PackFiles, link_files, newest_step, open_unpacked
from crpipe.train.link_start import Saved, key_of, start_of, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.paths import Paths
    from crpipe.core.text import Progress

DEFAULT_STATE = "state.tar"
_NOT_USED = "it is not used, and training begins where the pack does"
_SHORTEST = 5  # a slice is at least so many starts long
_WITHOUT_STEP = 3  # slices in a row
_LOG_LINES = 20
_ABOUT = {"time", "what", "host", "pid", "range", "c_library", "slurm_job"}  # of a journal's row of numerics
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(text: str) -> float:
    """Read a duration such as 90s, 30m or 2h; minutes without a unit. Raise ConfigError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None or not float(match[1]):
        raise ConfigError(f"--slice {text}: not a duration; write for example 30m, 2h or 90s")
    return float(match[1]) * _UNITS[match[2] or "m"]


def process_age_s() -> float:
    """Return the seconds since this process began; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


@dataclass(frozen=True, slots=True)
class SlicedJob:
    """Where a slice reads and writes.

    state: a path, or the URI of a depot. slice_s: seconds from ``begun`` (as time.time) after which the slice
    is over; 0: never.
    """

    pack: Path
    out: Path
    state: str = DEFAULT_STATE
    slice_s: float = 0.0
    begun: float = field(default_factory=time.time)


def train_pack(job: SlicedJob, progress: Progress) -> None:
    """Train what a pack holds, in any folder; leave ``out``, or the STATE.

    Raise SliceOver once the STATE is written; and what `train_link` raises, PackError for a pack that is not
    what was packed, once ``out`` holds the error.
    """
    with working_folder(job.out, progress.message) as work, _stopping():
        node = _Node(job, work, _Log(progress))
        try:
            node.run()
        except Interrupted as over:
            _ignore_signals()
            node.end_slice(over)
        except BaseException as error:
            _ignore_signals()
            node.fail(error)
            raise


class _Log:
    """Passes messages on, and keeps the last ones for a failure."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.lines: deque[str] = deque(maxlen=_LOG_LINES)

    def message(self, text: str) -> None:
        """Report and keep one line."""
        self.lines.append(text)
        self._progress.message(text)

    def update(self, label: str, done: float, total: float, note: str = "") -> None:
        """Report how far the work is."""
        self._progress.update(label, done, total, note)


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """Raise Interrupted for a signal until training takes them over; give them back to who had them."""

    def stop(number: int, _: object) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name} before training went on")

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """Finish what is begun: a slice that is over is written whole."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _Point(NamedTuple):
    """Where a link is: its step, and the sha256 of the snapshot or checkpoint that has it."""

    step: int
    sha256: str
    finished: bool = False


class _Node:
    """One slice of a link on a machine that has nothing but its pack."""

    def __init__(self, job: SlicedJob, work: Path, log: _Log) -> None:
        self.job, self.log = job, log
        self.folder, self.aside = work / "campaign", work / "state"
        self.fetched, self.left = work / "fetched.tar", work / "left.tar"
        self.record = new_record(LINK, "", "", "")
        self.campaign: Campaign | None = None
        self.begun = _Point(0, "")
        self.trains, self.is_added, self.took_state = False, False, False

    @property
    def paths(self) -> Paths:
        """Where the files of the unpacked campaign are."""
        assert self.campaign is not None
        return self.campaign.paths

    def run(self) -> None:
        """Unpack, take the STATE over, train, and write the result."""
        for folder in (self.folder, self.aside):
            remove_tree(folder)
        make_folder(self.folder)
        self.record = read_record(self.job.pack, (LINK,), SEND_AGAIN)
        unpack_all(self.job.pack, self.folder, (LINK,), SEND_AGAIN)
        fetch_referred(open_unpacked(self.folder).config, self.folder, self.record.files, self.log)
        self.campaign, self.start = self._opened()
        self._take_state()
        self.begun = self._point()
        self._refuse_slices(read_slices(self.paths.slices(self.record.name)))
        self._train()
        _ignore_signals()
        self._add_slice("")
        files = self._files()
        files.add(self.paths.receipt(self.record.name))
        files.write(self.job.out, LINK_OUT, self.record.name, self.record.key)
        self._drop_state()

    def _drop_state(self) -> None:
        """Delete the STATE that was taken over: the result has all of it."""
        if self.took_state:
            Path(self.job.state).unlink(missing_ok=True)

    def _opened(self) -> tuple[Campaign, Saved | None]:
        """Open the campaign; raise PackError where another key than that of the pack follows from it here."""
        campaign, name = open_unpacked(self.folder), self.record.name
        link = campaign.chain.named(name)
        start = start_of(campaign, link)
        key = key_of(campaign, link, start)
        refuse_other_key(self.job.pack, self.record, key, "a reader or workload")
        return campaign, start

    # The STATE that the slice before left.

    def _take_state(self) -> None:
        """Take the STATE over if it is whole, of this key, and not behind what the pack brought."""
        depot, state = self._depot(), Path(self.job.state)
        if depot is not None:
            state = self.fetched
            if not depot.fetch_state(self.record.key, state, self.log.message):
                return
        if not is_plain(state):
            return
        try:
            record = read_record(state, (STATE,), _NOT_USED)
            if record.key not in (self.record.key, ""):  # "": a signal came while the pack was read
                raise PackError(f"{state}: of key {record.key}, the pack has {self.record.key}; {_NOT_USED}")
            unpack_all(state, self.aside, (STATE,), _NOT_USED)
        except DataError as error:
            self.log.message(f"warning: {error}")
            return
        self.took_state = depot is None
        store = f"{RUNS}/{self.record.run}/store/{self.record.name}"
        newest = [newest_step(folder / store, self.record.key) for folder in (self.folder, self.aside)]
        for name in record.files if newest[1] >= newest[0] else ():
            make_folder((self.folder / name).parent)
            rename(self.aside / name, self.folder / name)

    def _depot(self) -> Depot | None:
        """Return the depot of the STATE where it is a URI or a directory; None for a file."""
        to = self.job.state
        if "://" in to or Path(to).is_dir():
            return Depot(open_unpacked(self.folder).config, to)
        return None

    def _point(self) -> _Point:
        """Return where the link is now."""
        newest = next(iter(link_files(self.paths, self.record.name, self.record.key)), None)
        if newest is None:
            return _Point(0, self.start.sha256 if self.start else "")
        if newest.name.startswith("snapshot-"):
            return _Point(step_of(newest), sha256(newest))
        return _Point(checkpoint_metadata(newest)["counters"]["range_step"], sha256(newest), finished=True)

    def _refuse_slices(self, rows: Sequence[TrainedSlice]) -> None:
        """Raise ConfigError for slices that are too short, TrainError for slices without a step."""
        slice_s, name = self.job.slice_s, self.record.name
        start_s = rows[-1].start_seconds if rows else 0.0
        if slice_s and slice_s < _SHORTEST * start_s:
            raise ConfigError(
                f"--slice: {slice_s:g} s, and link {name} took {start_s:.0f} s to start on {rows[-1].host}: "
                f"slices of less than {_SHORTEST} starts train too little; give --slice "
                f"{_SHORTEST * start_s:.0f}s or more"
            )
        last = rows[-_WITHOUT_STEP:]
        if len(last) == _WITHOUT_STEP and all(row.to_step == row.from_step for row in last):
            raise TrainError(
                f"link {name}: {_WITHOUT_STEP} slices in a row ended without a step (the last one on "
                f"{last[-1].host}, after {last[-1].seconds:.0f} s: {last[-1].stopped}); give a longer "
                "--slice, or machines that keep a job for longer"
            )

    # Training.

    def _train(self) -> None:
        from crpipe.train.link import train_link  # noqa: PLC0415 - it takes seconds, and a bad pack needs none

        campaign = self.campaign
        assert campaign is not None
        self.trains = True
        left_s = self.job.slice_s - (time.time() - self.job.begun)
        minutes = max(left_s, 1e-6) / 60 if self.job.slice_s else 0.0
        train_link(campaign, self.record.name, self.log, max_minutes=minutes, packed=True)

    # What a slice leaves.

    def end_slice(self, over: Interrupted) -> None:
        """Write the STATE, and raise SliceOver; or the result, where further slices would get nowhere."""
        reason = str(over).removesuffix("; a snapshot is saved, the same command resumes")
        if self.campaign is None:  # a signal while the pack was read: the STATE before stays
            state = Path(self.job.state)
            if not ("://" in self.job.state or state.exists()):
                write_pack(state, new_record(STATE, "", "", ""), {})
            raise SliceOver(f"{reason}; the same command goes on from {self.job.state}") from over
        try:
            self._refuse_slices(self._add_slice(reason))
        except CrpipeError as error:
            self.fail(error)
            raise
        depot = self._depot()
        state = self.left if depot else Path(self.job.state)
        self._files().write(state, STATE, self.record.name, self.record.key)
        if depot:
            depot.save_state(self.record.key, self._point().step, state)
        raise SliceOver(f"{reason}; the same command goes on from {self.job.state}") from over

    def fail(self, error: BaseException) -> None:
        """Write why there is no result, with the newest snapshot: nothing that was trained is lost."""
        error = self._disk_error(error) or error
        members: dict[str, Path | bytes] = {}
        if self.campaign is not None:
            self._add_slice(f"{type(error).__name__}: {error}")
            kept = self._files()
            kept.add(self.paths.diverged(self.record.name, self.record.key))
            members = kept.members
        write_failure(self.job.out, LINK_OUT, self.record, error, self.log.lines, members)
        self._drop_state()
        if isinstance(error, DiskError):
            raise error

    def _disk_error(self, error: BaseException) -> DiskError | None:
        """Return the error of this node's disk, where it changed what the pack brought; else None."""
        may_be = self.campaign is not None and isinstance(error, DataError | CheckpointError)
        for name, file in self.record.files.items() if may_be else ():
            path = self.folder / name
            if path.suffix in (".parquet", ".pt") and path.is_file() and sha256(path) != file.sha256:
                return DiskError(
                    f"{name}: whole when {self.job.pack} was unpacked, and its bytes are others now: the "
                    f"disk of {platform.node()} fails; run the same job on another machine"
                )
        return None

    def _files(self) -> PackFiles:
        """List what a STATE and a result hold alike."""
        assert self.campaign is not None
        files, paths, name = PackFiles(self.campaign), self.paths, self.record.name
        files.add(*link_files(paths, name, self.record.key), paths.slices(name))
        files.add(paths.train_journal(), paths.run_code())
        return files

    def _add_slice(self, stopped: str) -> list[TrainedSlice]:
        """Write the row of this slice after those before, and return all; none for an adopted checkpoint."""
        path, now = self.paths.slices(self.record.name), self._point()
        rows = read_slices(path)
        if self.begun.finished or self.is_added or not self.trains:
            return rows
        self.is_added = True
        journal = tail(self.paths.train_journal(), JOURNAL_BYTES, b'"numerics"')
        mine = (row for row in journal if (row["host"], row["pid"]) == (platform.node(), os.getpid()))
        here = [row for row in mine if row["what"] == "numerics" and row["time"] >= self.job.begun]
        row = TrainedSlice(
            from_step=self.begun.step,
            to_step=now.step,
            begun_with=self.begun.sha256,
            left=now.sha256,
            seconds=round(time.time() - self.job.begun, 3),
            start_seconds=round((here[-1]["time"] if here else time.time()) - self.job.begun, 3),
            host=platform.node(),
            numerics=digest({name: here[-1][name] for name in here[-1].keys() - _ABOUT}) if here else "",
            stopped=stopped,
        )
        rows.append(row)
        write_text(path, "".join(json.dumps(each.as_json(), sort_keys=True) + "\n" for each in rows))
        return rows
