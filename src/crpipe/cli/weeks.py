"""Verbs of campaigns that run for weeks: clean, sync, restore."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli.terminal import Settings, Terminal, show

if TYPE_CHECKING:
    from crpipe.check.clean.spent import SpentFile

# Handlers import what they call: a verb pays for its own libraries only.
# ruff: noqa: PLC0415

weeks = typer.Typer()


@weeks.command()
def clean(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="delete; without it, only show")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK", help="link whose checkpoint stays, too; several: repeat it"),
    ] = None,
) -> None:
    """Show what nothing needs any more, and why; delete it with --yes, while no workflow runs here."""
    from crpipe.check.clean.deletion import delete_spent, find_spent
    from crpipe.cli.jobs.weeks import clean_job

    job = clean_job(Settings.config(), tuple(keep or ()), Path())
    if yes:
        found = delete_spent(job, Terminal())
        show(_listed(found, "deleted"))
        return
    found = find_spent(job)
    show(_listed(found, "to delete"))
    if found:
        show("nothing was deleted; `crpipe clean --yes` deletes these files (stop the workflow first)")
    if not job.keep_links:
        show("train.keep_links is 0: no checkpoint is deleted; 2 would keep those of the newest two links")


def _listed(found: list[SpentFile], what: str) -> str:
    """List files with size and reason, and their sum."""
    from crpipe.report.text import counted, size

    lines = [f"{each.path}  {size(each.size)}\n    {each.why}" for each in found]
    total = size(sum(each.size for each in found))
    return "\n".join([*lines, f"{counted(len(found), 'file')} {what}, {total}"])


@weeks.command()
def sync(
    *,
    every: Annotated[
        float, typer.Option(metavar="MINUTES", help="again and again, until the run is finished", min=0.0)
    ] = 0.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="read every file of the copy and compare its sha256")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="send everything: the copy that sync.to held is gone for good")
    ] = False,
) -> None:
    """Send what is new of the run to `sync.to`, and what its copy has lost; another machine can go on."""
    from crpipe.cli.jobs.source import sync_job
    from crpipe.cli.jobs.weeks import is_finished
    from crpipe.source.sync.repeat import sync_every
    from crpipe.source.sync.send import SyncRules, sync_run

    config, rules = Settings.config(), SyncRules(verify, new)
    if every:
        sync_every(sync_job(config), every, lambda: is_finished(config), Terminal(), rules)
    else:
        sync_run(sync_job(config), Terminal(), rules)


@weeks.command()
def restore(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="where the run was synced to; default: sync.to")
    ] = "",
) -> None:
    """Bring a synced run into an empty directory, each file verified; the same workflow command goes on."""
    from crpipe.cli.jobs.source import sync_job
    from crpipe.source.sync.restore import restore_run

    config = Settings.config()
    job = sync_job(config)
    restore_run(replace(job, to=source or job.to), Terminal())
    print(
        "now start the workflow here, with the same configuration: it goes on where the copy ends. The copy "
        "has no shards; `snakemake outliers_consolidated` makes all of them again, also for validation"
    )
