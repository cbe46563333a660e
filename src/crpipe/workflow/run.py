"""Starts Snakemake as a child of `crpipe run`: its command line, the events it writes, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from crpipe.core.errors import ConfigError, CrpipeError, MissingExtra, exit_code_is_retryable, is_retryable
from crpipe.core.files import disk_errors
from crpipe.core.signals import follow
from crpipe.workflow.monitor import DESCRIPTOR, TYPED, UNNOTIFIED
from crpipe.workflow.rules import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from crpipe.workflow.monitor import Event

LOOK_S = 0.2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OURS = frozenset({"--config", "-C", "--configfile", "--configfiles"})
_SHOWN = 25  # last lines of an output that explains itself
_REFUSAL, _USAGE = "crpipe: ", ": error: "
_BEFORE = "Building DAG of jobs..."  # ends what Snakemake says of itself
_TRACEBACK = "Traceback (most recent call last):"
_OF_SYSTEM = re.compile(r"\[Errno (\d+)\] ([^\n:]+)(?:: '([^'\n]+)')?")


@dataclass(frozen=True, slots=True)
class SnakemakeCommand:
    """What is asked of Snakemake.

    changes: the sections of the configuration that `--set` changed; cores: of this machine, or with a profile
    the number of jobs at a time; more: words passed on as they are.
    """

    targets: Sequence[str]
    files: Sequence[Path]
    changes: Mapping[str, Any]
    profile: str = ""
    cores: str = ""
    dry_run: bool = False
    more: Sequence[str] = ()

    def words(self) -> list[str]:
        """Format the command line. No warning of a library is for a user's eyes."""
        for word in self.more:
            if word.partition("=")[0] in _OURS:
                raise ConfigError(
                    f"{word} after --: name the configuration before it: "
                    "crpipe run --config FILE --set KEY.SUB=VALUE"
                )
        if find_spec("snakemake") is None:
            raise MissingExtra(
                f"snakemake runs the workflow, and {sys.executable} cannot import it; install it there: "
                f"{sys.executable} -m pip install snakemake; then crpipe doctor"
            )
        words = [sys.executable, "-P", "-W", "ignore", "-m", "snakemake", *self.targets]
        if self.files:
            words += ["--configfile", *map(str, self.files)]
        if self.changes:
            words += ["--config", *(f"{name}={one_line(value)}" for name, value in self.changes.items())]
        if self.profile:
            words += ["--profile", self.profile]
        if self.cores:
            words += ["--jobs" if self.profile else "--cores", self.cores]
        if self.dry_run:
            words += ["--dry-run"]
        return [*words, *self.more]


@dataclass(slots=True)
class WorkflowResult:
    """How Snakemake ended.

    code: its exit code, negative for a signal. began: whether it came as far as its jobs; finished: how many
    of them ended well. failures: verb, name, kind of error and cause of each job that failed. text: why it
    failed, in its own words; output: the last lines of what it printed.
    """

    code: int = 0
    began: bool = False
    finished: int = 0
    failures: list[Event] = field(default_factory=list)
    output: str = ""
    text: str = ""

    def refuse_system_error(self) -> None:
        """Raise DiskError where an error of the system kept Snakemake from beginning, such as a full disk."""
        found = None if self.began or not self.code else _OF_SYSTEM.search(self.output)
        if found:
            place = Path(found[3] or ".snakemake")
            with contextlib.suppress(OSError), disk_errors(place):
                raise OSError(int(found[1]), found[2], str(place)) from None

    def add(self, event: Event) -> None:
        """Take note of an event."""
        kind = event["event"]
        self.began |= kind == "begin"
        self.finished += kind == "end"
        if kind == "text":
            self.text = event["text"]
        if kind == "failures":
            self.failures = event["failures"]


class StopSignal:
    """The first of SIGINT, SIGTERM and SIGHUP that this process got: passed on to the child.

    Without a child it is a KeyboardInterrupt: counting the files of a source may take long.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.number = 0
        self._say = say
        self._child: subprocess.Popen[bytes] | None = None
        self._holds = False

    def listen(self) -> None:
        """Take these signals from now on; `nohup` has SIGHUP ignored, and that stays so."""
        for number in _STOP_SIGNALS:
            if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
                signal.signal(number, self._on_signal)

    def hold(self) -> None:
        """Let a signal wait for the child that is being started."""
        self._holds = True

    def guard(self, child: subprocess.Popen[bytes] | None) -> None:
        """Name the child that gets the signal; also where it came a moment before. None: it has ended."""
        self._child = child
        self._holds = child is not None
        if self.number and child is not None:
            child.send_signal(signal.SIGTERM)

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program that the signal ended."""
        return 128 + self.number

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.number:
            self._tell("already stopping")
            return
        self.number = number
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)
            self._tell(
                "stopping: running jobs on this machine write a snapshot, those of a cluster are cancelled"
            )
        elif not self._holds:
            raise KeyboardInterrupt

    def _tell(self, text: str) -> None:
        """Print a line where that is possible: the terminal may be gone, or be in use."""
        with contextlib.suppress(OSError, RuntimeError):
            self._say(text)


def run_head(
    call: SnakemakeCommand,
    typed: Sequence[str],
    stop: StopSignal,
    receive: Callable[[Event], None],
    tick: Callable[[], None],
    *,
    notify: bool = True,
) -> WorkflowResult:
    """Run Snakemake to its end; give each event to ``receive``, and call ``tick`` a few times a second.

    It writes into files: it must never wait for this process, nor fail because this one was killed. It has a
    session of its own, so that Ctrl-C reaches it, and its jobs, once and in order. When this process dies it
    gets SIGTERM. notify: whether it informs a person of a failure.
    """
    end = WorkflowResult()
    with tempfile.TemporaryFile() as events, tempfile.TemporaryFile() as output:
        variables = {**os.environ, DESCRIPTOR: str(events.fileno()), TYPED: json.dumps(list(typed))}
        variables |= {} if notify else {UNNOTIFIED: "1"}
        stop.hold()
        child = subprocess.Popen(  # noqa: S603 - this Python, and the words that were typed
            call.words(),
            env=variables,
            stdout=output if call.dry_run else None,  # Snakemake lists the jobs there, in many words
            stderr=output,
            stdin=subprocess.DEVNULL,
            pass_fds=(events.fileno(),),
            start_new_session=True,
            preexec_fn=follow(os.getpid()),  # noqa: PLW1509 - no thread runs in this process
        )
        try:
            stop.guard(child)
            place = 0
            while True:
                over = child.poll() is not None
                place = _read(events, place, end, receive)
                if over:
                    break
                tick()
                time.sleep(LOOK_S)
        finally:
            _end(child)
            stop.guard(None)
        end.code = child.returncode
        end.output = _last_words(output)
    return end


def _end(child: subprocess.Popen[bytes]) -> None:
    """Stop a child that still runs, and wait for it: after an error here a second one may be started."""
    if child.poll() is None:
        child.terminate()
        child.wait()


def _read(events: IO[bytes], place: int, end: WorkflowResult, receive: Callable[[Event], None]) -> int:
    """Read the whole lines after ``place``; return where they end."""
    # The child writes through the same open file: reading must not move its position.
    data = os.pread(events.fileno(), os.fstat(events.fileno()).st_size - place, place)
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut by a full disk
        end.add(event)
        receive(event)
    return place + len(whole)


def _last_words(output: IO[bytes]) -> str:
    """Return what a refused call printed: crpipe's own refusal, else the last lines."""
    lines = (
        os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace").splitlines()
    )
    ours = next((place for place, line in enumerate(lines) if line.startswith(_REFUSAL)), None)
    if ours is not None:
        return "\n".join(lines[ours:])
    if lines and _USAGE in lines[-1]:  # below the list of all options
        return lines[-1].partition(_USAGE)[2]
    start = lines.index(_BEFORE) + 1 if _BEFORE in lines else 0
    if _TRACEBACK in lines:  # the error itself follows the places in the code, which are indented
        ends = [place for place, line in enumerate(lines) if line[:1].isspace()]
        start = max([*ends, lines.index(_TRACEBACK)]) + 1
    return "\n".join(lines[start:][-_SHOWN:]).strip()


# `crpipe run --keep-trying`: whether a failed workflow is started again, and after what pause.


LONGEST_S = 3600.0
MOST = 50  # about two days of one cause without any progress


@dataclass(slots=True)
class RetryPolicy:
    """Growing pauses, from ``first_s`` to an hour; each cause is waited for MOST times without progress."""

    first_s: float = 60.0
    tries: Counter[str] = field(default_factory=Counter)
    _pause_s: float = 0.0

    def after(self, end: WorkflowResult) -> float:
        """Return the pause after a failed workflow, in seconds; 0 where it is no use to try again."""
        if not hopes(end):
            return 0.0
        return self._next(causes(end), progress=end.finished > 0)

    def after_error(self, error: CrpipeError) -> float:
        """Return the pause after an error before any job; 0 where it is no use to try again."""
        if not is_retryable(type(error).__name__):
            return 0.0
        return self._next([str(error)], progress=False)

    def _next(self, found: list[str], *, progress: bool) -> float:
        if progress:
            self.tries.clear()
            self._pause_s = 0.0
        self.tries.update(found)
        if any(self.tries[cause] > MOST for cause in found):
            return 0.0
        self._pause_s = min(max(2 * self._pause_s, self.first_s), LONGEST_S)
        return self._pause_s


def hopes(end: WorkflowResult) -> bool:
    """Return whether waiting may repair what made the workflow fail."""
    if end.failures:
        return all(is_retryable(failure["kind"]) for failure in end.failures)
    # Snakemake ends with 1 for every error of its own: one before any job is a wrong target or option.
    return exit_code_is_retryable(end.code) and (end.began or end.code != 1)


def causes(end: WorkflowResult) -> list[str]:
    """Name each cause of a failure: what failed, and by which error."""
    named = [f"{each['verb']} {each['name']}: {each['kind'] or 'killed'}" for each in end.failures]
    return named or [f"exit {end.code}"]


def described(end: WorkflowResult) -> str:
    """Describe in one line what failed."""
    ended = {"verb": "workflow", "name": "", "cause": f"ended with exit code {end.code}"}
    first, *more = end.failures or [ended]
    others = f" (and {len(more)} more)" if more else ""
    separator = " " if first["cause"].startswith("(") else ": "
    return f"{' '.join(filter(None, (first['verb'], first['name'])))}{separator}{first['cause']}{others}"
