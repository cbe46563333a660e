"""What `crpipe run` prints: at most three lines for each job, and how far the running ones are.

In: log records of Snakemake, from `snakemake_logger_plugin_crpipe`; their attributes are read by
name. Out: lines on a screen, and in `RUN` how the workflow ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from crpipe.core.causes import machine_error
from crpipe.core.errors import CrpipeError, DataError, MachineError
from crpipe.core.journal import METRICS_BYTES, metric_rows, tail
from crpipe.core.signals import StopRequest
from crpipe.core.text import counted, duration, shorten
from crpipe.report.evaluations import evaluations
from crpipe.report.run_time import GOOD_STEPS
from crpipe.report.verdicts import line
from crpipe.report.work_state import training_progress
from crpipe.setup.init import changed_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import SkippedRange

_VERBS = {"list_range": "list", "outliers_consolidated": "consolidate", "train_outliers": "train outliers"}
# Rules that only gather others: nothing runs for them.
_TARGETS = frozenset({"all", "train_all", "evaluation"})
# Jobs of seconds: one line when they have ended.
_EVALUATE = "evaluate"
_OF_OTHER_VERSIONS = ("ImportError", "AttributeError", "NameError", "ModuleNotFoundError")  # end their rules
_SHORT = frozenset({"list_range", "figures", "gallery", "tables", "progress"})
# With this attribute a record of level INFO is for the screen, too.
FOR_A_PERSON = {"for_a_person": True}

LIVE_S, LINE_S = 3.0, 600.0
_LOOK_S = 0.2
_TAIL_BYTES = 4096
_WIDTH = 150
_LOSSES = 2
_SHOWN = 25  # last lines of an error that explains itself
_TRACEBACK = "Traceback (most recent call last):"
_OF_SYSTEM = re.compile(r"\[Errno (\d+)\] ([^\n:]+)(?:: '([^'\n]+)')?")


@dataclass(slots=True)
class WorkflowRun:
    """What this process knows of the workflow that it runs.

    typed: the command of a person, empty for a plain `snakemake`. targets: what was asked for.
    report: the open file from which `--keep-trying` reads the end, to print it. stop: the signals.
    monitor: the screen, if there is one. began: whether the first jobs could start; ahead: whether one
    process worked before them; finished: how many ended well; succeeded: whether all is there. failures:
    verb, name, kind of error and cause of each job that failed. skipped: what is missing, and why, by the
    ranges that were left out at its end. text: why it failed. error: what of the machine kept Snakemake from
    beginning.
    """

    typed: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    report: int | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    monitor: Monitor | None = None
    began: bool = False
    ahead: bool = False
    finished: int = 0
    succeeded: bool = False
    failures: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    text: str = ""
    error: MachineError | None = None

    @property
    def watched(self) -> bool:
        """Whether `--keep-trying` reads the end and prints it."""
        return self.report is not None

    def write_report(self) -> None:
        """Write for `--keep-trying` how far the workflow is, or how it ended; nothing without it."""
        if self.report is not None:
            names = "targets", "began", "finished", "failures", "skipped", "text"
            text = json.dumps({name: getattr(self, name) for name in names}).encode()
            with contextlib.suppress(OSError):  # a full disk: then the exit code alone tells
                os.pwrite(self.report, text, 0)
                os.truncate(self.report, len(text))

    def words(self) -> list[str]:
        """Return the command that continues this workflow."""
        return list(self.typed) or ["snakemake", *sys.argv[1:]]

    def skip(self, ranges: Iterable[SkippedRange]) -> None:
        """Note the ranges that are left out from now on: they are failures no more."""
        self.skipped = {each.range: each.describe() for each in ranges}
        self.failures = [each for each in self.failures if each["name"] not in self.skipped]

    def refuse(self, error: CrpipeError) -> None:
        """Keep the error that ends the workflow before its first job, and print it."""
        self.failures = [{"verb": "", "name": "", "kind": type(error).__name__, "cause": str(error)}]
        self.end(f"crpipe: {error}")

    def end(self, text: str) -> None:
        """Keep the text that explains the end; print it at once where neither a screen nor a watcher does."""
        self.text = text
        if self.monitor is None and not self.watched:
            # Not print: a signal may come in the middle of one.
            os.write(2, f"{text}\n".encode())


RUN = WorkflowRun()


class Screen(Protocol):
    """Where the lines go, and the progress of this process's own work."""

    @property
    def tty(self) -> bool:
        """Whether lines can be rewritten."""

    def message(self, text: str) -> None:
        """Print one line."""

    def show(self, text: str) -> None:
        """Print one line of what was asked for."""

    def live(self, text: str) -> None:
        """Rewrite the last line; on a terminal only."""


def name_of(rule: str, wildcards: Mapping[str, Any]) -> str:
    """Name a job as its command does: ``train 0000000-0000999``."""
    return " ".join([_VERBS.get(rule, rule), *map(str, dict(wildcards).values())])


def jobs_in(stats: Mapping[str, int]) -> dict[str, int]:
    """Count the jobs of each rule, without the sum and the rules that only gather others."""
    return {rule: int(n) for rule, n in stats.items() if rule != "total" and rule not in _TARGETS}


def jobs_table(counts: Mapping[str, int], names: Mapping[str, Iterable[str]] | None = None) -> list[str]:
    """List the jobs of a dry run: a line for each rule, with the first and the last of its names."""
    total = sum(counts.values())
    lines = [f"{counted(total, 'job')} to do:" if total else "Nothing to be done."]
    words = {rule: _VERBS.get(rule, rule) for rule in counts}
    width = max(map(len, words.values()), default=0)
    for rule, number in counts.items():
        ends = sorted(filter(None, (name.rpartition(" ")[2] for name in (names or {}).get(rule, ()))))
        some = ends if len(ends) < 3 else [ends[0], "…", ends[-1]]  # noqa: PLR2004 - first and last
        alone = number == 1 and words[rule].endswith(" ".join(some))
        lines.append(f"  {words[rule]:{width}}  {number:4}  {'' if alone else ' '.join(some)}".rstrip())
    return lines


@dataclass(slots=True)
class RunningJob:
    """A job that was started."""

    name: str
    rule: str
    log: str
    begun: float = field(default_factory=time.monotonic)

    def age(self) -> str:
        """Describe how long ago it was started."""
        return duration(time.monotonic() - self.begun)


class Monitor:
    """Prints what Snakemake logs of one workflow, and the progress of its jobs from their logs and metrics.

    campaign: given as soon as the workflow has read it.
    """

    def __init__(self, screen: Screen, run: WorkflowRun, *, dry_run: bool = False) -> None:
        self.campaign: Campaign | None = None
        self._screen = screen
        self._run = run
        self._dry_run = dry_run
        self._counts: Mapping[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._running: dict[int, RunningJob] = {}
        self._failed: dict[int, str] = {}
        self._errors: list[str] = []
        self._begun = self._shown = time.monotonic()
        self._ended = threading.Event()
        self._lock = threading.RLock()

    def start(self) -> None:
        """Show from now on how far the jobs are."""
        threading.Thread(target=self._tick_on, name="progress", daemon=True).start()

    def _tick_on(self) -> None:
        while not self._ended.wait(_LOOK_S):
            with self._lock:
                self.tick()

    def receive(self, record: logging.LogRecord) -> None:
        """Print what a record says about a job, and warnings; a terminal that is gone stops no jobs."""
        about = vars(record)
        kind = str(about.get("event") or "")
        handler = getattr(self, f"_on_{kind}", None)
        with self._lock, contextlib.suppress(OSError):
            if handler is not None:
                handler(about)
            elif record.levelno >= logging.ERROR:
                self._errors.append(record.getMessage())
            elif not kind and (record.levelno == logging.WARNING or FOR_A_PERSON.keys() <= about.keys()):
                self._screen.message(record.getMessage())

    def tick(self) -> None:
        """Show how far a running job is, every few seconds on a terminal and every ten minutes elsewhere."""
        now = time.monotonic()
        if self._dry_run or now - self._shown < (LIVE_S if self._screen.tty else LINE_S):
            return
        self._shown = now
        with contextlib.suppress(OSError):  # a file server that is down for a moment stops no jobs
            if text := self._progress():
                (self._screen.live if self._screen.tty else self._screen.message)(text)

    def close(self) -> None:
        """Print how it ended: why it failed, the jobs of a dry run, or how much was done; once."""
        if self._ended.is_set():
            return
        self._ended.set()
        run = self._run
        if self._errors and not run.text and not run.succeeded:  # else of jobs that were repeated
            run.text = last_words("\n".join(self._errors))
            run.error = None if run.began else system_error(run.text)
            older = any(name in run.text for name in _OF_OTHER_VERSIONS)
            if older and not run.began and (changed := changed_files(Path())):
                names = ", ".join(map(str, changed[:3]))
                run.text += (
                    f"\n{names}: not as in this version of crpipe; take its workflow: crpipe init --force"
                )
        with self._lock, contextlib.suppress(OSError):
            if run.text:
                raised = run.error is not None and bool(run.typed)  # `crpipe run` prints what it raises
                lines = [] if run.watched or raised else run.text.splitlines()
            else:  # in an exception that crpipe itself has explained there is no more to say
                lines = [] if sys.exc_info()[0] else self._closing()
            for line in lines:
                (self._screen.show if self._dry_run and not run.text else self._screen.message)(line)

    def _closing(self) -> list[str]:
        if self._dry_run:
            return jobs_table(self._counts, self._names)
        jobs = counted(self._run.finished, "job")
        lines = [f"{jobs} done in {duration(time.monotonic() - self._begun)}."]
        if not self._counts:
            done = "Done before any job" if self._run.ahead else "Nothing to be done"
            lines = [f"{done}: everything that was asked for is there."]
        with contextlib.suppress(DataError):  # `crpipe check` names a damaged file
            given_up = () if self.campaign is None else self.campaign.given_up
            lines += [f"skipped: {each.describe()}" for each in given_up]
            if self.campaign is not None and (self._run.ahead or _EVALUATE in self._counts):
                for newest in islice(evaluations(self.campaign), 1):
                    lines.append(f"the model: {line(newest)}")
                    if newest.record.step and newest.record.step < GOOD_STEPS:
                        few = f"it was trained in {counted(newest.record.step, 'step')}"
                        lines.append(f"{few}, {GOOD_STEPS} are the least for most: `crpipe plan` says how")
        return lines

    def _on_run_info(self, about: Mapping[str, Any]) -> None:
        self._counts = jobs_in(about["stats"])
        if not self._dry_run:
            self._screen.message(f"{counted(sum(self._counts.values()), 'job')} to do")

    def _on_job_info(self, about: Mapping[str, Any]) -> None:
        rule = about["rule_name"]
        if rule in _TARGETS:
            return
        log = next(iter(map(str, about["log"])), "")
        job = RunningJob(name_of(rule, about["wildcards"]), rule, log)
        self._names.setdefault(rule, []).append(job.name)
        if self._dry_run:
            return
        again = " again" if about["jobid"] in self._failed else ""
        self._running[about["jobid"]] = job
        for number in self._failed:
            self._because(number)
        if rule not in _SHORT:
            self._screen.message(f"{job.name}{self._place(job.name)}{again}  log: {log}")

    def _on_job_finished(self, about: Mapping[str, Any]) -> None:
        job = self._running.pop(about["job_id"], None)
        if job is not None:
            self._run.finished += 1
            self._run.write_report()
            done = f"{self._run.finished} of {sum(self._counts.values())}"
            self._screen.message(f"{job.name} finished after {job.age()}  ({done})")

    def _on_job_error(self, about: Mapping[str, Any]) -> None:
        number = about["jobid"]
        job = self._running.pop(number, None)
        if job is not None:
            self._failed[number] = last_line(Path(job.log))
            self._screen.message(f"{job.name} FAILED after {job.age()}  log: {job.log}")
            if self._running:  # else the workflow ends, and says it
                self._because(number)

    def _because(self, number: int) -> None:
        """Print the last line of the log that a failed job left; once."""
        if last := self._failed[number]:
            self._screen.message(f"  | {shorten(last, _WIDTH)}")
        self._failed[number] = ""

    def _place(self, name: str) -> str:
        """Describe where the range or link of a job is in the campaign: `` (3 of 12)``."""
        verb, _, name = name.rpartition(" ")
        names = self.campaign.ranges if self.campaign and verb in ("stage", "convert", "split") else ()
        names = self.campaign.chain.names if self.campaign and verb in ("train", "evaluate") else names
        return f" ({names.index(name) + 1} of {len(names)})" if name in names else ""

    def _progress(self) -> str:
        jobs = [job for job in self._running.values() if job.rule not in _SHORT]
        if not jobs:
            return ""
        # The chain is what a campaign waits for.
        first = next((job for job in jobs if job.name.startswith("train")), jobs[0])
        more = f"  (and {counted(len(jobs) - 1, 'other job')})" if len(jobs) > 1 else ""
        text = self._of_training(first) or last_line(Path(first.log), "%")
        return f"{text or f'{first.name}  for {first.age()}'}{more}"

    def _of_training(self, job: RunningJob) -> str:
        """Describe a training from the last rows of its metrics."""
        if self.campaign is None or not job.name.startswith("train"):
            return ""
        store = self.campaign.paths.store(job.name.rpartition(" ")[2])
        rows = metric_rows(tail(store / "metrics.jsonl", METRICS_BYTES))
        progress = training_progress(rows)
        if not progress:
            return ""
        losses = [f"{name} {value:.4g}" for name, value in rows[-1].items() if name.endswith("loss")]
        left = f"{duration(progress['eta_s'])} left" if "eta_s" in progress else ""
        steps = f"step {progress['step']:,} of {progress['steps']:,}"
        return "  ".join(filter(None, [job.name, steps, left, *losses[:_LOSSES]]))


def last_line(log: Path, only: str = "") -> str:
    """Read the last line of a log that has ``only`` in it; empty where there is none."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = handle.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip() and only in line), "")


def last_words(text: str) -> str:
    """Return the last lines of Snakemake's errors; of a traceback the error itself, without the code."""
    lines = text.splitlines()
    if _TRACEBACK in lines:  # the places in the code are indented
        ends = [index for index, line in enumerate(lines) if line[:1].isspace()]
        lines = lines[max([*ends, lines.index(_TRACEBACK)]) + 1 :]
    return "\n".join(lines[-_SHOWN:]).strip()


def system_error(text: str) -> MachineError | None:
    """Return the error of the machine that a text of Snakemake names, such as a full disk."""
    match = _OF_SYSTEM.search(text)
    if match is None:
        return None
    path = match[3] or ".snakemake"
    # A file that is missing is one of the workflow's: nothing repairs it meanwhile.
    return machine_error(OSError(int(match[1]), match[2], path), path, frozenset({errno.ENOENT}))


def logs_line(campaign: Campaign, handlers: Iterable[logging.Handler]) -> str:
    """Name the folders of the jobs' logs, and Snakemake's own log."""
    files = [Path(each.baseFilename) for each in handlers if isinstance(each, logging.FileHandler)]
    names = [path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path for path in files[:1]]
    paths = campaign.paths
    return f"logs: {', '.join(map(str, (paths.results / 'logs', paths.run_dir() / 'logs', *names)))}"
