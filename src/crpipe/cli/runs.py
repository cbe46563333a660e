"""`crpipe run`: the workflow of this directory, with the right options and lines that a person can follow."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from crpipe.cli.terminal import Settings, Terminal, show
from crpipe.config.files import way_to_campaign
from crpipe.core.errors import ConfigError
from crpipe.core.progress import printable

# Handlers import what they call: a verb pays for its own libraries only.
# ruff: noqa: PLC0415

runs = typer.Typer()

_COLUMNS = 80  # of a terminal that does not say
_SNAKEFILES = ("Snakefile", "workflow/Snakefile")
_LOOKING = frozenset({"--dry-run", "--dryrun", "-n"})


@runs.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET] [-- OPTION …]",
            help="all (default), train_all, outliers_consolidated, evaluation, progress, or a file; "
            "after --: options of snakemake",
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="profile of a cluster, such as slurm")] = "",
    cores: Annotated[
        str, typer.Option("--cores", "-j", help="cores to use; with --profile: jobs at a time; default: all")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="show the jobs and start none")] = False,
    links: Annotated[int, typer.Option(help="train so many more links, then stop; 0: all", min=0)] = 0,
    keep_trying: Annotated[
        bool,
        typer.Option("--keep-trying", help="start again after failures that may pass, with growing pauses"),
    ] = False,
    pause_minutes: Annotated[
        float, typer.Option(help="first pause of --keep-trying; it doubles up to an hour", min=0.001)
    ] = 1.0,
) -> None:
    """Run every job that TARGET needs. Ctrl-C stops it with a snapshot; the same command continues.

    Exit codes: 0 done, 1 a job failed, 130 stopped by Ctrl-C, 143 by SIGTERM, else that of the refusal.
    """
    from crpipe.cli.jobs.run import RunRequest, run_until_done

    if not any(Path(name).is_file() for name in _SNAKEFILES):
        raise ConfigError(f"{Path.cwd()}: no Snakefile here; {way_to_campaign(Path())}")
    given = words or []
    cut = next((place for place, word in enumerate(given) if word.startswith("-")), len(given))
    targets, more = given[:cut], given[cut:]
    if targets and links:
        raise typer.BadParameter("name a TARGET or --links N, not both")
    request = RunRequest(
        files=Settings.config_files(),
        overrides=Settings.overrides,
        targets=tuple(targets),
        links=links,
        profile=profile,
        cores=cores,
        dry_run=dry_run or not _LOOKING.isdisjoint(more),
        more=tuple(word for word in more if word not in _LOOKING),
        typed=("crpipe", *sys.argv[1:]),
        pause_s=60 * pause_minutes if keep_trying else 0.0,
    )
    sys.exit(run_until_done(request, TerminalScreen()))


class TerminalScreen(Terminal):
    """A terminal whose last line is rewritten while jobs run."""

    @property
    def tty(self) -> bool:
        """Whether lines can be rewritten."""
        return self._tty

    def show(self, text: str) -> None:
        """Print one line of what was asked for."""
        show(text)

    def live(self, text: str) -> None:
        """Rewrite the last line, cut to the width of the terminal."""
        width = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
        print(f"\r\x1b[K{printable(text, keep='')[: width - 1]}", end="", file=sys.stderr, flush=True)
