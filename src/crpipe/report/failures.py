"""Why a workflow did not finish: from Snakemake's own log, the journals and the logs of the jobs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign.split_record import NOTES, SPILLS, left_notes
from crpipe.core.causes import is_present
from crpipe.core.errors import code_of
from crpipe.core.journal import Row, attempts
from crpipe.core.text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from crpipe.core.paths import Paths

TAIL = 5
_WIDTH = 200
_BLOCK = re.compile(
    r"^Error in rule \w+:\n(.*?)(?=^(?:Error in|\[|Logfile|Trying|Shutting|Exiting|Finished|=)|\Z)",
    re.MULTILINE | re.DOTALL,
)
_FIELD = r"^ {4}%s: (.+)$"
_REFUSED = re.compile(r"sbatch failed\. The error message was '(.*?)'\.\s", re.DOTALL)
_HELD = re.compile(r"HTCondor .*(?: is held|Hold reason): (.+)")
_ARGUMENTS = re.compile(r" with arguments .*?(?=: [A-Z])")
_STATE = re.compile(r"SLURM status is: '(\w+)'")
_STATES = {
    "TIMEOUT": "ran into its time limit",
    "DEADLINE": "ran into its time limit",
    "OUT_OF_MEMORY": "needed more memory than it asked for",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node",
    "CANCELLED": "was cancelled",
}
_AROUND = re.compile(r"^WorkflowError:\n(.+)\n(?:\[.*\]\n)?\Z", re.MULTILINE)
_MEMORY = re.compile(r"exceeded (?:job )?memory limit|oom[-_ ]kill", re.IGNORECASE)
_WITHOUT = re.compile(r"^(.+) \(missing locally, parent dir", re.MULTILINE)  # of a job that ended well
_LOGS = re.compile(r"(?<=\.log), ")  # a directory's name may have a comma, too
_HINT = " (check log file(s) for error details)"
_SILENT = "ended without a message: killed, or out of memory"


@dataclass(frozen=True, slots=True)
class JobFailure:
    """One job that failed in its last attempt: what it did, its log, and what Snakemake and its cluster say.

    cluster_job: such as "Slurm job 7"; state: Slurm's name for how the job ended; refused: why the cluster
    did not run it; slurm_log: Slurm's own log; around: an error in Snakemake's own work around the job, such
    as recording its resources.
    """

    verb: str
    name: str
    log: Path
    cluster_job: str = ""
    state: str = ""
    refused: str = ""
    slurm_log: Path | None = None
    around: str = ""


def explain(paths: Paths, messages: str, ends: Mapping[Path, int]) -> list[str]:
    """Describe each job that failed in its last attempt.

    messages: Snakemake's own log. ends: where the journals ended when the workflow started, in bytes.
    Gives a line for each failure with its cause, then the end of its log.
    """
    journals = (paths.data_journal(), paths.train_journal())
    rows = [row for path in journals for row in attempts(path)]
    new = [row for path in journals for row in attempts(path, ends.get(path, 0))]
    last = {(row["verb"], row["range"]): row for row in new}
    starts = {(row["verb"], row["range"]): row for row in rows if row["what"] == "start"}
    lines: list[str] = []
    for failure in failures_in(messages):
        work = (failure.verb, failure.name)
        cause = _cause(failure, last.get(work), paths)
        lines.append(f"{' '.join(filter(None, work))}{cause}")
        host = starts[work]["host"] if work in starts and not failure.refused else ""
        where = [failure.cluster_job, f"on {host}" if host else ""]
        lines.append(f"  log: {failure.log}  {' '.join(filter(None, where))}".rstrip())
        text = cause.partition(": ")[2]
        repeats = {shorten(each, _WIDTH) for each in (text, f"crpipe: {text}")}
        lines += [f"  | {line}" for line in _tail(failure.log) if line not in repeats]
    lost = [path for path in dict.fromkeys(_WITHOUT.findall(messages)) if not is_present(Path(path))]
    return lines + [
        f"{path}: missing, though its job ended well: it was deleted, or written elsewhere because the "
        "configuration (run, results) was changed meanwhile; a slow file server needs --latency-wait"
        for path in lost
    ]


def kinds_of(paths: Paths, messages: str, ends: Mapping[Path, int]) -> list[Row]:
    """Return verb, name, kind of error, cause, attempts and log of each job that failed in its last attempt.

    The kind is empty for one that died without an error. The arguments are those of `explain`.
    """
    last: dict[tuple[str, str], Row] = {}
    tries: Counter[tuple[str, str]] = Counter()
    for path in (paths.data_journal(), paths.train_journal()):
        rows = attempts(path, ends.get(path, 0))
        last |= {(row["verb"], row["range"]): row for row in rows}
        tries.update((row["verb"], row["range"]) for row in rows if row["what"] == "start")
    kinds = []
    for failure in failures_in(messages):
        work = (failure.verb, failure.name)
        row = last.get(work, {})
        kind = row["kind"] if row.get("what") in ("failed", "paused") else ""
        cause = _cause(failure, row or None, paths).removeprefix(": ")
        about = {"kind": kind, "cause": cause.strip(), "attempts": tries[work], "log": str(failure.log)}
        kinds.append({"verb": failure.verb, "name": failure.name, **about})
    return kinds


def failures_in(messages: str) -> Iterable[JobFailure]:
    """Find the jobs that failed and did not succeed in a later attempt, in the order of their failures."""
    by_log: dict[Path, JobFailure] = {}
    recovered: set[Path] = set()
    for block in _BLOCK.finditer(messages):
        log, number = _field("log", block[1]), _field("jobid", block[1])
        path, *more = map(Path, _LOGS.split(log.removesuffix(_HINT)))
        if re.search(rf"^Finished jobid: {number} ", messages[block.end() :], re.MULTILINE):
            recovered.add(path)
        if not log or path in recovered:
            continue
        state, job = _STATE.search(block[1]), _field("external_jobid", block[1])
        cluster = "HTCondor" if " HTCondor " in block[1] else "Slurm"
        failure = JobFailure(
            *_work(path),
            path,
            f"{cluster} job {job}" if job else "",
            state[1] if state else "",
            _refused(block[1]),
            more[0] if more else None,
            around[1] if (around := _AROUND.search(messages, 0, block.start())) else "",
        )
        # The log of a job on a node repeats the failure, but without the state and the reason from Slurm.
        if path not in by_log or failure.state or failure.refused:
            by_log[path] = failure
    return by_log.values()


def _refused(block: str) -> str:
    """Read why a cluster did not run a job; the whole command is no part of it."""
    if match := _REFUSED.search(block):
        return f"Slurm refused the job: {' '.join(match[1].split())}"
    match = _HELD.search(block)
    return f"HTCondor held the job: {_ARGUMENTS.sub('', match[1])}" if match else ""


def _field(name: str, block: str) -> str:
    match = re.search(_FIELD % name, block, re.MULTILINE)
    return match[1] if match else ""


def _work(log: Path) -> tuple[str, str]:
    """Read the verb and the range from a log's path: logs/<verb>/<range>.log or logs/<verb>.log."""
    return (log.stem, "") if log.parent.name == "logs" else (log.parent.name, log.stem)


def _cause(failure: JobFailure, row: dict[str, Any] | None, paths: Paths) -> str:
    if failure.refused:
        return f": {failure.refused}"
    if row is not None and row["what"] in ("failed", "paused"):
        return f" (exit {code_of(row['kind'])}): {row['error']}"
    state = "OUT_OF_MEMORY" if _killed_for_memory(failure.slurm_log) else failure.state
    if row is not None and row["what"] == "finished":
        if failure.around:
            return f": finished its work, but Snakemake failed afterwards: {failure.around}"
        why = f" ({_STATES[state]})" if state in _STATES else ""
        return f": finished its work, but its job failed afterwards{why}; the next run will reuse the result"
    if state in _STATES:
        return f": {_STATES[state]}"
    lines = _tail(failure.log)
    return f": {lines[-1] if lines and row is None else _SILENT + _read_by(failure, paths)}"


def _read_by(failure: JobFailure, paths: Paths) -> str:
    """Name the raw files that a split worked on when it was killed; a library that ends it names none."""
    record = paths.shards(failure.name) / SPILLS / NOTES if failure.verb == "split" else None
    files = sorted(left_notes(record).values()) if record is not None else []
    return f" (while it read {', '.join(files)})" if files else ""


def _killed_for_memory(slurm_log: Path | None) -> bool:
    """Return whether Slurm's log says that the job was killed for its memory; its state is only FAILED."""
    if slurm_log is None or not is_present(slurm_log):
        return False
    return _MEMORY.search(slurm_log.read_text(errors="replace")) is not None


def _tail(log: Path) -> list[str]:
    if not is_present(log):
        return []
    lines = log.read_text(errors="replace").strip().splitlines()
    return [shorten(line, _WIDTH) for line in lines[-TAIL:]]
