"""What was done, where and how long it took: attempts of jobs and machines, from the journals."""

from __future__ import annotations

import codecs
import contextlib
import csv
import math
import os
from dataclasses import dataclass
from os.path import relpath
from typing import TYPE_CHECKING
from urllib.parse import quote

from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.journal import ENDS, Row, attempts, tail
from crpipe.core.paths import OUTLIERS, Paths
from crpipe.core.text import Column, duration, moment, number, size, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


JOURNAL_BYTES = 16 << 20  # of each journal, the newest
_MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt of a verb on a range: when it began and ended (None: not known), where, and its error.

    what: how it ended: finished, paused or failed; empty where that is not known.
    """

    verb: str
    name: str
    start: float
    end: float | None
    host: str
    error: str
    what: str


def attempts_of(paths: Paths) -> list[JobAttempt]:
    """Read the attempts of all verbs in the order in which they began."""
    journals = (paths.data_journal(), paths.train_journal())
    rows = (row for path in journals for row in attempts(path, limit=JOURNAL_BYTES))
    return sorted(_attempts(rows), key=lambda each: each.start)


def _attempts(rows: Iterable[Row]) -> Iterator[JobAttempt]:
    begun: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["verb"], row["range"]
        if row["what"] == "start":
            if key in begun:  # killed: nothing says when
                yield _attempt(begun[key], None, "no end recorded")
            begun[key] = row
        elif row["what"] in ENDS and key in begun:
            error = row.get("error", "") if row["what"] == "failed" else ""
            yield _attempt(begun.pop(key), row, str(error))
    for row in begun.values():
        yield _attempt(row, None, "")


def _attempt(start: Row, end: Row | None, error: str) -> JobAttempt:
    ended, what = (None, "") if end is None else (float(end["time"]), end["what"])
    return JobAttempt(start["verb"], start["range"], float(start["time"]), ended, start["host"], error, what)


def time_spent(attempts: Iterable[JobAttempt]) -> dict[tuple[str, str], float]:
    """Add up the seconds of each range and verb; the consolidation is of the outliers."""
    seconds: dict[tuple[str, str], float] = {}
    for attempt in attempts:
        if attempt.end is not None:
            key = attempt.name or OUTLIERS, attempt.verb
            seconds[key] = seconds.get(key, 0.0) + attempt.end - attempt.start
    return seconds


def log_addresses(paths: Paths, name: str, folder: Path | None) -> list[tuple[str, str]]:
    """List verb and address of each log of a range, as seen from a page in ``folder``; None: none."""
    addresses = []
    for verb in ("list", "stage", "convert", "split", "train") if folder is not None else ():
        top = paths.run_dir() if verb == "train" else paths.results
        log = top / "logs" / verb / f"{name}.log"
        if is_present(log):
            addresses.append((verb, quote(relpath(log, folder))))
    return addresses


def machines(journal: Path) -> list[tuple[str, str]]:
    """Describe which hosts trained, each with its device and versions, as the training jobs recorded them."""
    counts: dict[tuple[str, str], int] = {}
    for row in tail(journal, JOURNAL_BYTES, b'"machine"'):
        if row.get("what") == "machine":
            ranks = row.get("ranks", 1)
            text = f"{row.get('device', '?')}{f', {ranks} ranks' if ranks != 1 else ''}"
            versions = f"torch {row.get('torch', '?')}, Python {row.get('python', '?')}"
            key = str(row.get("host", "?")), f"{text}; {versions}, crpipe {row.get('crpipe', '?')}"
            counts[key] = counts.get(key, 0) + 1
    return [(host, f"{text}; {jobs} job{'' if jobs == 1 else 's'}") for (host, text), jobs in counts.items()]


# What the jobs needed, from Snakemake's benchmarks.


def usage_of(paths: Paths) -> list[list[str]]:
    """Summarise the benchmark files of a campaign and of its run: the cells of a table, a row for each rule.

    They are its number of jobs, their total, median and longest wall time, and their largest memory.
    """
    by_rule: dict[str, list[tuple[float, float]]] = {}
    for top in (paths.results / "benchmarks", paths.run_dir() / "benchmarks"):
        for path in sorted(top.rglob("*.tsv")):
            rule = path.parent.name if path.parent != top else path.stem
            by_rule.setdefault(rule, []).extend(_measured(path))
    usage = []
    for rule, pairs in by_rule.items():
        if pairs:
            times = sorted(seconds for seconds, _ in pairs)
            memory = max(each for _, each in pairs)
            spans = [duration(each) for each in (sum(times), times[len(times) // 2], times[-1])]
            usage.append([rule, number(len(times)), *spans, size(memory * _MEBI) if memory else ""])
    return usage


def _measured(path: Path) -> Iterator[tuple[float, float]]:
    """Yield seconds and largest memory in MiB of each row; a short job has no memory: 0."""
    with path.open(newline="", errors="replace") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            seconds = _number(row.get("s"))
            if seconds is not None:
                yield seconds, _number(row.get("max_rss")) or 0.0


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# The logs that jobs of the workflow write: which there are, and what is added while a job runs.


_CHUNK = 1 << 16
_GONE = -1


@dataclass(frozen=True, slots=True)
class JobLog:
    """One log. name: the range or link that the job worked on; empty for a job of the whole campaign.

    time: when it was last written; bytes: its size.
    """

    verb: str
    name: str
    path: Path
    time: float
    bytes: int


def job_logs(paths: Paths) -> list[JobLog]:
    """List the logs of a campaign and its run, the newest last."""
    logs = []
    for top in (paths.results / "logs", paths.run_dir() / "logs"):
        for path in (*top.glob("*.log"), *top.glob("*/*.log")):
            verb, name = (path.stem, "") if path.parent == top else (path.parent.name, path.stem)
            with contextlib.suppress(FileNotFoundError):  # a retry of its job begins with a new one
                about = path.stat()
                logs.append(JobLog(verb, name, path, about.st_mtime, about.st_size))
    return sorted(logs, key=lambda log: (log.time, log.path))


def chosen(logs: Sequence[JobLog], name: str, verb: str) -> list[JobLog]:
    """Keep the logs of a range or link, and of a verb; empty: of any. Raise ConfigError when none is left."""
    kept = [log for log in logs if name in ("", log.name) and verb in ("", log.verb)]
    if not kept:
        job = " ".join(filter(None, (verb, name)))
        verbs = ", ".join(dict.fromkeys(log.verb for log in logs if name in ("", log.name)))
        if not job:
            raise ConfigError("logs: no job of the workflow has written a log yet; to run it: crpipe run")
        there = f"there are logs of: {verbs}" if verbs else "`crpipe logs` lists what there is"
        raise ConfigError(f"{job}: no job of the workflow has written a log yet; {there}")
    return kept


def list_logs(logs: Sequence[JobLog], width: int) -> str:
    """Write the logs as a table."""
    columns = [
        Column("written", [moment(log.time) for log in logs]),
        Column("job", [f"{log.verb} {log.name}".rstrip() for log in logs]),
        Column("size", [size(log.bytes) for log in logs], right=True),
        Column("file", [str(log.path) for log in logs]),
    ]
    return "\n".join(table(columns, width))


def read_on(path: Path, wait: Callable[[], None], said: Callable[[str], None]) -> Iterator[str]:
    """Yield the text of a log and then what is added to it; ``wait`` is called where there is nothing new.

    A retry of the job replaces the log: ``said`` gets a line, and the new log is read from its start.
    """
    number, offset = 0, 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                if number and (about.st_ino != number or about.st_size < offset):
                    said(f"{path}: the job began again")
                    offset = 0
                    decoder.reset()
                number = about.st_ino
                file.seek(offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            # The next file may get the same inode.
            data, number = b"", number and _GONE
        offset += len(data)
        if data:
            yield decoder.decode(data)
        else:
            wait()
