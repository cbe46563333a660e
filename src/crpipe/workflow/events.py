"""What happens in the workflow's process, one JSON object for each event, for `crpipe run` to print.

Snakemake's own log records carry what is needed in their attributes; they are read by name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from crpipe.core.progress import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

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
    """Give the command that a person typed: that of `crpipe run`, else ``words``."""
    return json.loads(os.environ[TYPED]) if TYPED in os.environ else list(words)


def logs_of(handlers: Iterable[logging.Handler]) -> list[Path | str]:
    """Name the files that a log is written to."""
    return [each.baseFilename for each in handlers if isinstance(each, logging.FileHandler)]
