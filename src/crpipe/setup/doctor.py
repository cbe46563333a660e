"""`crpipe doctor`: this machine, and what a configuration names, with what to type where it is not ok."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.config.loading import load_config
from crpipe.core.errors import CrpipeError
from crpipe.core.ranges import Range
from crpipe.core.text import counted, size
from crpipe.setup.init import extras_of
from crpipe.setup.machine import (
    Diagnosis,
    disk_found,
    extras_found,
    gpu_found,
    gpus_here,
    has_slurm,
    memory_found,
    processors_found,
    python_found,
    slurm_found,
    torch_found,
    workflow_found,
)
from crpipe.source.look.listings import REMOTE_S, look
from crpipe.source.pelican.login import check_reading, source_uris
from crpipe.source.uris import FEDERATIONS, Kind, SourcePattern, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from crpipe.config.loading import Config

_WIDTH = 15  # of the names
_INDENT = _WIDTH + 7
_LINE = 110
_FIX = "correct section source or ranges, then: crpipe doctor"


def examine(files: Sequence[Path], overrides: Iterable[str]) -> list[Diagnosis]:
    """Look at this machine, and at what the configuration names; without one, at the machine alone."""
    config, told = _configuration(files, overrides)
    gpus, slurm = gpus_here(), slurm_found()
    cluster = has_slurm() and slurm.verdict == "ok"
    wanted = config.train.gpus if config is not None and not cluster else 0
    found = [
        told,
        workflow_found(Path()),
        python_found(),
        torch_found(gpus),
        gpu_found(gpus, wanted),
        processors_found(),
        memory_found(),
        slurm,
    ]
    needed = {"gpu": "to record the use of the GPU"} if gpus else {}
    if config is None:
        return [*found, disk_found("folder", Path()), extras_found(needed)]
    needed |= extras_of(config.source.reader, config.train.workload)
    return [*found, extras_found(needed), *_of_campaign(config, cluster=cluster)]


def _configuration(files: Sequence[Path], overrides: Iterable[str]) -> tuple[Config | None, Diagnosis]:
    """Read the configuration; None and the reason where none is named, or it is wrong."""
    if not files:
        text = "none is named: only this machine is looked at"
        return None, Diagnosis("configuration", "warn", text, "crpipe init   # or name one: --config FILE")
    names = ", ".join(map(str, files))
    try:
        return load_config(files, overrides), Diagnosis("configuration", "ok", f"{names} (later files win)")
    except CrpipeError as error:
        return None, Diagnosis("configuration", "fail", f"{names}: {error}", "correct the key that is named")


def _of_campaign(config: Config, *, cluster: bool) -> Iterator[Diagnosis]:
    paths = config.paths()
    budget = 0.0 if config.simulates() else config.source.disk_budget_gib
    yield disk_found("results", paths.results, budget, cluster=cluster)
    yield disk_found("runs", paths.runs, cluster=cluster)
    try:
        uris = source_uris(config)
    except CrpipeError as error:
        yield Diagnosis("source", "fail", str(error), "crpipe init --force   # or edit section source")
        return
    yield token_found(config, uris)
    yield source_found(config)


def _first_range(config: Config, pattern: SourcePattern) -> Range:
    """Return the first range that is not skipped; where the files are not counted yet, the first of all."""
    with contextlib.suppress(CrpipeError):
        return config.all_ranges()[0]
    first, step = config.ranges.first, config.ranges.step
    # A flat source may hold less than one range.
    return Range(first, first if pattern.kind in (Kind.FLAT, Kind.FLAT_LIST) else first + step - 1)


def source_found(config: Config) -> Diagnosis:
    """List the files of the first range, as `crpipe plan` does."""
    pattern = SourcePattern.of(config)
    if pattern.kind is Kind.SIMULATED:
        maker = config.source.simulator.rpartition(":")[2]
        return Diagnosis("source", "ok", f"synthetic://: {maker} makes the files")
    first = _first_range(config, pattern)
    try:
        listings = look(config, [first])
    except CrpipeError as error:
        return Diagnosis("source", "fail", str(error), _FIX)
    wrong = [*listings.problems, *listings.warnings]
    if wrong:
        return Diagnosis("source", "fail", wrong[0], _FIX)
    entries = listings.found[str(first)]
    total = size(sum(entry.size or 0 for entry in entries))
    return Diagnosis("source", "ok", f"{counted(len(entries), 'file')}, {total} (range {first})")


def token_found(config: Config, uris: Iterable[str]) -> Diagnosis:
    """Compare the token in use with what the source asks for, in a short time."""
    if not any(uri and scheme_of(uri) in FEDERATIONS for uri in uris):
        return Diagnosis("token", "ok", "the source needs none")
    try:
        access = check_reading(config, min(config.source.read_timeout_s, REMOTE_S / 2))
    except CrpipeError as error:
        return Diagnosis("token", "fail", str(error), "crpipe token --login")
    if not access.answered:
        return Diagnosis("token", "warn", f"not compared: {access.problem}", "crpipe doctor   # later")
    if access.problem:
        return Diagnosis("token", "fail", access.problem, "crpipe token --login")
    lines = access.text.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines if len(line.split(maxsplit=1)) > 1)
    if "ends" not in rows:
        return Diagnosis("token", "ok", lines[0])
    return Diagnosis("token", "ok", f"covers the campaign; ends {rows['ends']}")


def as_table(findings: Sequence[Diagnosis]) -> str:
    """Write one line for each finding, and below it the fix."""
    lines = []
    for found in findings:
        lines += _wrapped(f"{found.verdict:4s}  {found.name:{_WIDTH}s} ", found.text)
        if found.fix:
            lines += [f"{'':{_INDENT}s}-> {found.fix}"]  # in one line: it is pasted
    return "\n".join(lines)


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _LINE,
        initial_indent=start,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def to_json(findings: Sequence[Diagnosis]) -> str:
    """Write the findings for a program: name, verdict, text and fix of each."""
    return json.dumps({"findings": [dataclasses.asdict(found) for found in findings]}, indent=1)


def failed_names(findings: Sequence[Diagnosis]) -> list[str]:
    """Name what will stop a campaign."""
    return [found.name for found in findings if found.verdict == "fail"]
