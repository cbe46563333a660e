"""What `crpipe doctor` looks at, composed from the configuration where one is named."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.cli.jobs.source import source_options, token_uris
from crpipe.config.loading import load_config
from crpipe.core.errors import CrpipeError
from crpipe.core.ranges import Range
from crpipe.setup.doctor import (
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
    source_found,
    token_found,
    torch_found,
    workflow_found,
)
from crpipe.setup.init import extras_of
from crpipe.source.look.listings import REMOTE_S, LookJob
from crpipe.source.pelican.login import TokenJob
from crpipe.source.uris import Kind, SourcePattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from crpipe.config.loading import Config


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
    section = config.source
    try:
        uris = token_uris(config)
        pattern = SourcePattern(section.uri, section.files)
        options = replace(source_options(config), attempts=2)
    except CrpipeError as error:
        yield Diagnosis("source", "fail", str(error), "crpipe init --force   # or edit section source")
        return
    yield token_found(
        TokenJob(uris, section.token_file, min(section.read_timeout_s, REMOTE_S / 2), section.token_issuer)
    )
    yield source_found(LookJob(pattern, (_first_range(config, pattern),), section.min_files, 0, options))


def _first_range(config: Config, pattern: SourcePattern) -> Range:
    """Give the first range that is not skipped; where the files are not counted yet, the first of all."""
    with contextlib.suppress(CrpipeError):
        return config.all_ranges()[0]
    first, step = config.ranges.first, config.ranges.step
    # A flat source may hold less than one range.
    return Range(first, first if pattern.kind in (Kind.FLAT, Kind.FLAT_LIST) else first + step - 1)
