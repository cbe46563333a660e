"""What `crpipe run` prints: at most three lines for each job, and how far the running ones are."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from crpipe.core.journal import METRICS_BYTES, metric_rows, tail
from crpipe.core.text import counted, duration, shorten
from crpipe.report.work_state import training_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from crpipe.campaign.campaign import Campaign

# What happens in the workflow's process, one JSON object for each event, for `crpipe run` to print.
#
# Snakemake's own log records carry what is needed in their attributes; they are read by name.


Event = dict[str, Any]

# The descriptor of the file for events, and the command that was typed; `crpipe run` sets both.
DESCRIPTOR = "CRPIPE_EVENTS"
TYPED = "CRPIPE_TYPED"
# Set where a failure is tried again: nobody is informed of it.
UNNOTIFIED = "CRPIPE_UNNOTIFIED"
_VERBS = {"list_range": "list", "outliers_consolidated": "consolidate", "train_outliers": "train outliers"}
# Rules that only gather others: nothing runs for them.
_TARGETS = frozenset({"all", "train_all", "evaluation"})
_SUM = "total"


class EventHandler(logging.Handler):
    """Gives each log record of Snakemake that says something about a job to ``send``, as an event."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        super().__init__(logging.INFO)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on; one that is not known is left out, unless it is a warning."""
        event = event_of(record)
        if event is not None:
            self._send(event)


def event_of(record: logging.LogRecord) -> Event | None:
    """Read an event from a log record of Snakemake; None where it says nothing about a job."""
    about = vars(record)
    kind = str(about.get("event") or "")
    if kind == "run_info":
        return {"event": "jobs", "counts": jobs_in(about["stats"])}
    if kind == "job_info" and about["rule_name"] not in _TARGETS:
        return {
            "event": "start",
            "job": about["jobid"],
            "rule": about["rule_name"],
            "name": name_of(about["rule_name"], about["wildcards"]),
            "log": next(iter(map(str, about["log"])), ""),
        }
    if kind == "job_finished":
        return {"event": "end", "job": about["job_id"]}
    if kind == "job_error":
        return {"event": "error", "job": about["jobid"]}
    if not kind and record.levelno == logging.WARNING:
        return {"event": "say", "text": record.getMessage()}
    return None


def name_of(rule: str, wildcards: Mapping[str, Any]) -> str:
    """Name a job as its command does: ``train 0000000-0000999``."""
    return " ".join([_VERBS.get(rule, rule), *map(str, dict(wildcards).values())])


def jobs_in(stats: Mapping[str, int]) -> dict[str, int]:
    """Count the jobs of each rule, without the sum and the rules that only gather others."""
    return {rule: int(n) for rule, n in stats.items() if rule != _SUM and rule not in _TARGETS}


def jobs_table(counts: Mapping[str, int], names: Mapping[str, Iterable[str]] | None = None) -> list[str]:
    """List the jobs of a dry run: a line for each rule, with the first and the last of its names."""
    total = sum(counts.values())
    lines = [f"{counted(total, 'job')} to do:" if total else "Nothing to be done."]
    words = {rule: _VERBS.get(rule, rule) for rule in counts}
    width = max(map(len, words.values()), default=0)
    for rule, number in counts.items():
        found = sorted(filter(None, (name.rpartition(" ")[2] for name in (names or {}).get(rule, ()))))
        some = found if len(found) < 3 else [found[0], "…", found[-1]]  # noqa: PLR2004 - first and last
        alone = number == 1 and words[rule].endswith(" ".join(some))
        lines.append(f"  {words[rule]:{width}}  {number:4}  {'' if alone else ' '.join(some)}".rstrip())
    return lines


def sender() -> Callable[[Event], None] | None:
    """Open the file for events that `crpipe run` passed on; None where it did not start this process."""
    descriptor = os.environ.pop(DESCRIPTOR, "")
    if not descriptor:
        return None
    number = int(descriptor)
    os.set_inheritable(number, False)

    def send(event: Event) -> None:
        # What a person sees is no reason to stop the jobs: the disk of the file may be full.
        with contextlib.suppress(OSError):
            os.write(number, (json.dumps(event) + "\n").encode())

    return send


def typed(words: Iterable[str]) -> list[str]:
    """Return the command that a person typed: that of `crpipe run`, else ``words``."""
    return json.loads(os.environ[TYPED]) if TYPED in os.environ else list(words)


def logs_of(handlers: Iterable[logging.Handler]) -> list[Path | str]:
    """Name the files that a log is written to."""
    return [each.baseFilename for each in handlers if isinstance(each, logging.FileHandler)]


LIVE_S, LINE_S = 3.0, 600.0
# Jobs of seconds: one line when they have ended.
_SHORT = frozenset({"list_range", "figures", "gallery", "tables", "progress"})
_TAIL_BYTES = 4096
_WIDTH = 150
_LOSSES = 2


class Screen(Protocol):
    """Where the lines go, and the progress of this process's own work."""

    @property
    def tty(self) -> bool:
        """Whether lines can be rewritten."""

    def message(self, text: str) -> None:
        """Print one line."""

    def show(self, text: str) -> None:
        """Print one line of what was asked for."""

    def update(self, label: str, done: float, total: float, note: str = "") -> None:
        """Report that ``done`` of ``total`` are finished."""

    def live(self, text: str) -> None:
        """Rewrite the last line; on a terminal only."""


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
    """Prints the events of one workflow, and the progress of its jobs from their logs and metrics."""

    def __init__(self, campaign: Campaign, screen: Screen, *, dry_run: bool = False) -> None:
        self._paths = campaign.paths
        self._places = _places(campaign)
        self._screen = screen
        self._dry_run = dry_run
        self._counts: Mapping[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._running: dict[int, RunningJob] = {}
        self._failed: dict[int, str] = {}
        self._done = 0
        self._begun = self._shown = time.monotonic()

    def receive(self, event: Event) -> None:
        """Print an event."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def tick(self) -> None:
        """Show how far a running job is, every few seconds on a terminal and every ten minutes elsewhere."""
        now = time.monotonic()
        if self._dry_run or now - self._shown < (LIVE_S if self._screen.tty else LINE_S):
            return
        self._shown = now
        text = ""
        with contextlib.suppress(OSError):  # a file server that is down for a moment stops no jobs
            text = self._progress()
        if text:
            (self._screen.live if self._screen.tty else self._screen.message)(text)

    def close(self) -> list[str]:
        """Return the lines that end it: the jobs of a dry run, or how much was done."""
        if self._dry_run:
            return jobs_table(self._counts, self._names)
        if not self._counts:
            return ["Nothing to be done: everything that was asked for is there."]
        jobs = counted(self._done, "job")
        return [f"{jobs} done in {duration(time.monotonic() - self._begun)}."]

    def _on_jobs(self, event: Event) -> None:
        self._counts = event["counts"]
        if not self._dry_run:
            self._screen.message(f"{counted(sum(self._counts.values()), 'job')} to do")

    def _on_begin(self, event: Event) -> None:
        places = [
            str(self._paths.results / "logs"),
            str(self._paths.run_dir() / "logs"),
            *map(_short, event["logs"][:1]),
        ]
        self._screen.message(f"logs: {', '.join(places)}")

    def _on_start(self, event: Event) -> None:
        job = RunningJob(event["name"], event["rule"], event["log"])
        self._names.setdefault(job.rule, []).append(job.name)
        if self._dry_run:
            return
        again = " again" if event["job"] in self._failed else ""
        self._running[event["job"]] = job
        for number in self._failed:
            self._because(number)
        if job.rule not in _SHORT:
            self._screen.message(f"{self._title(job)}{again}  log: {job.log}")

    def _on_end(self, event: Event) -> None:
        job = self._running.pop(event["job"], None)
        if job is not None and not self._dry_run:
            self._done += 1
            total = sum(self._counts.values())
            self._screen.message(f"{job.name} finished after {job.age()}  ({self._done} of {total})")

    def _on_error(self, event: Event) -> None:
        job = self._running.pop(event["job"], None)
        if job is not None:
            self._failed[event["job"]] = last_line(Path(job.log))
            self._screen.message(f"{job.name} FAILED after {job.age()}  log: {job.log}")
            if self._running:  # else the workflow ends, and says it
                self._because(event["job"])

    def _because(self, number: int) -> None:
        """Print the last line of the log that a failed job left; once."""
        if last := self._failed[number]:
            self._screen.message(f"  | {shorten(last, _WIDTH)}")
        self._failed[number] = ""

    def _on_say(self, event: Event) -> None:
        self._screen.message(event["text"])

    def _title(self, job: RunningJob) -> str:
        return f"{job.name}{self._places.get(job.name, '')}"

    def _progress(self) -> str:
        jobs = [job for job in self._running.values() if job.rule not in _SHORT]
        if not jobs:
            return ""
        # The chain is what a campaign waits for.
        first = next((job for job in jobs if job.name.startswith("train")), jobs[0])
        more = f"  (and {counted(len(jobs) - 1, 'other job')})" if len(jobs) > 1 else ""
        text = self._of_training(first) if first.name.startswith("train") else ""
        text = text or last_line(Path(first.log), "%") or f"{first.name}  for {first.age()}"
        return f"{text}{more}"

    def _of_training(self, job: RunningJob) -> str:
        """Describe a training from the last rows of its metrics."""
        link = job.name.rpartition(" ")[2]
        rows = metric_rows(tail(self._paths.store(link) / "metrics.jsonl", METRICS_BYTES))
        progress = training_progress(rows)
        if not progress:
            return ""
        losses = [f"{name} {value:.4g}" for name, value in rows[-1].items() if name.endswith("loss")]
        left = f"{duration(progress['eta_s'])} left" if "eta_s" in progress else ""
        steps = f"step {progress['step']:,} of {progress['steps']:,}"
        return "  ".join(filter(None, [job.name, steps, left, *losses[:_LOSSES]]))


def _places(campaign: Campaign) -> dict[str, str]:
    """Describe for each job of a range or link where it is in the campaign: `` (3 of 12)``."""
    places: dict[str, str] = {}
    chain = campaign.chain.names
    for verbs, names in ((("stage", "split"), campaign.ranges), (("train", "evaluate"), chain)):
        for verb in verbs:
            places |= {f"{verb} {name}": f" ({k} of {len(names)})" for k, name in enumerate(names, 1)}
    return places


def last_line(log: Path, only: str = "") -> str:
    """Read the last line of a log that has ``only`` in it; empty where there is none."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = handle.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip() and only in line), "")


def _short(path: str) -> str:
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path
