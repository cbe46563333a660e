"""Verbs of workflows: `crpipe run`, `crpipe ahead` without jobs, `crpipe scan` for several values of keys."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import importing
from crpipe.cli.terminal import ByOption, FigureOption, Settings, Terminal, opened, show
from crpipe.cli.verbs import declare
from crpipe.config.files import way_to_campaign
from crpipe.core.errors import (
    AccessError,
    ConfigError,
    DataError,
    LeaseError,
    MachineError,
    MissingExtra,
    PluginError,
    SourceError,
    TrainError,
)
from crpipe.core.signals import StopRequest
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crpipe.workflow.run import RunRequest

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415

workflow = typer.Typer()
_SNAKEFILES = ("Snakefile", "workflow/Snakefile")
_LOOKING = frozenset({"--dry-run", "--dryrun", "-n"})

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET] [-- OPTION …]",
        help="all (default), train_all, outliers_consolidated, evaluation, progress, or a file; "
        "after --: options of snakemake",
    ),
]
ProfileOption = Annotated[str, typer.Option(help="profile of a cluster, such as slurm")]
CoresOption = Annotated[
    str, typer.Option("--cores", "-j", help="cores to use; with --profile: jobs at a time; default: all")
]
TryingOption = Annotated[
    bool,
    typer.Option("--keep-trying", help="start again after failures that may pass, with growing pauses"),
]
PauseOption = Annotated[
    float, typer.Option(help="first pause of --keep-trying; it doubles up to an hour", min=0.001)
]
_REFUSALS = (DataError, SourceError, LeaseError, AccessError, MissingExtra, PluginError, MachineError)
OF_A_RUN = (TrainError, *_REFUSALS, signal.SIGHUP, signal.SIGTERM)


@partial(declare, "Start")(
    workflow,
    "run",
    "all --profile slurm",
    reads="source, ranges, split, train, resources, notify",
    raises=OF_A_RUN,
    page="operations.md#start",
)
def run(
    words: WordsArgument = None,
    profile: ProfileOption = "",
    cores: CoresOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="show the jobs and start none")] = False,
    links: Annotated[int, typer.Option(help="train so many more links, then stop; 0: all", min=0)] = 0,
    keep_trying: TryingOption = False,
    pause_minutes: PauseOption = 1.0,
) -> None:
    """Run every job that TARGET needs; again: go on.

    Ctrl-C stops it with a snapshot; the same command continues. Exit codes: 0 done, 1 a job failed, 129
    stopped by a closed terminal, 130 by Ctrl-C, 143 by SIGTERM, else that of the refusal.
    """
    from crpipe.workflow.run import run_workflow

    pause_s = 60 * pause_minutes if keep_trying else 0.0
    sys.exit(run_workflow(_run_request(words, profile, cores, links, pause_s, dry_run=dry_run), Terminal()))


def _run_request(
    words: list[str] | None, profile: str, cores: str, links: int, pause_s: float, *, dry_run: bool
) -> RunRequest:
    """Check what was typed, before Snakemake reads the workflow."""
    from crpipe.workflow.run import RunRequest, check_targets

    if not any(Path(name).is_file() for name in _SNAKEFILES):
        raise ConfigError(
            f"{Path.cwd()}: no Snakefile here; {way_to_campaign(Path())}; `crpipe init` makes one"
        )
    given = words or []
    cut = next((place for place, word in enumerate(given) if word.startswith("-")), len(given))
    targets, more = given[:cut], given[cut:]
    if targets and links:
        raise typer.BadParameter("name a TARGET or --links N, not both")
    check_targets(targets, Path())
    if cores and cores != "all" and not (cores.isascii() and cores.isdecimal() and int(cores)):
        raise typer.BadParameter(f"--cores {cores}: expected 1 or more, or all")
    return RunRequest(
        files=Settings.config_files(),
        overrides=Settings.overrides,
        targets=tuple(targets),
        links=links,
        profile=profile,
        cores=cores,
        dry_run=dry_run or not _LOOKING.isdisjoint(more),
        more=tuple(word for word in more if word not in _LOOKING),
        typed=("crpipe", *sys.argv[1:]),
        pause_s=pause_s,
    )


@partial(declare, "Tools")(
    workflow,
    "scan",
    "scan.yaml train_all",
    reads="source, ranges, split, train, model, resources, notify",
    raises=OF_A_RUN,
    page="training.md#scan-settings",
)
def scan(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", readable=False, help="YAML: runs: {NAME: keys}, or grid: {KEY: values}"
        ),
    ],
    words: WordsArgument = None,
    profile: ProfileOption = "",
    cores: CoresOption = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="list the runs and the keys that differ; start none")
    ] = False,
    keep_trying: TryingOption = False,
    pause_minutes: PauseOption = 1.0,
    by: ByOption = "",
    figure: FigureOption = None,
    *,
    summary: Annotated[
        bool, typer.Option("--summary", help="only rank the runs, as far as they are")
    ] = False,
) -> None:
    """Run the workflow for several values of keys, run after run; again: go on; rank the runs.

    The runs are RUN-NAME, beside each other in the folder `runs`, on the same data. Only keys that change the
    checkpoints may differ. One that fails stops no other; the exit code is 1, or the one that all of these
    share.
    """
    from crpipe.report.compare import plot_comparison, ranking, render_tables, runs_table
    from crpipe.workflow.scan import read_scan, run_scan

    runs = read_scan(file, Settings.config_files(), Settings.overrides)
    code = 0
    if not summary:
        pause_s = 60 * pause_minutes if keep_trying else 0.0
        request = _run_request(words, profile, cores, 0, pause_s, dry_run=dry_run)
        if request.dry_run:
            title = f"would start {counted(len(runs), 'run')}, one after the other"
            show(render_tables([runs_table([each.files() for each in runs], title)]))
            return
        stop = StopRequest()
        code = run_scan(runs, request, Terminal(), stop)
        if stop.number:
            sys.exit(code)
    files = [each.files() for each in runs]
    show(render_tables([ranking(files, by, runs[0].config.train.monitor, keys=True)]))
    if figure is not None:
        print(plot_comparison(files, figure))
    sys.exit(code)


@partial(declare, "Steps that the workflow runs")(
    workflow,
    "ahead",
    "all",
    reads="source, ranges, train",
    raises=[PluginError, MachineError],
    page="operations.md#start",
)
def ahead(
    ctx: typer.Context,
    targets: Annotated[list[str], typer.Argument(help="what was asked for: all, train_all, …")],
) -> None:
    """Run the commands of a small campaign in this process, for up to a minute; jobs do what is left."""
    with importing():
        from crpipe.workflow.ahead import is_left, work_ahead

    campaign, files, overrides = opened(Settings.config()), Settings.files, Settings.overrides
    options = [word for path in files for word in ("--config", str(path))]
    options += [word for text in overrides for word in ("--set", text)]

    root = ctx.find_root().command
    gc.set_threshold(50_000, 20, 20)  # the libraries of all verbs live to the end

    def call(words: Iterable[str]) -> None:
        root.main([*options, *words], standalone_mode=False)

    ends: list[tuple[str, ...]] = []
    if "all" in targets and "MAKELEVEL" not in os.environ:  # `make demo` does it itself
        ends += [("report",), ("summary",)]
    if campaign.config.notify.success:
        ends.append(("notify", "success"))
    if is_left(campaign, targets):
        work_ahead(campaign, targets, call, Terminal(), ends)
