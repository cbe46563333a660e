"""Deletes what a campaign does not need any more, while nothing else works on it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from crpipe.check.clean.needed import FinishedLinks, refuse_damaged
from crpipe.check.clean.spent import list_spent
from crpipe.core.errors import LeaseError
from crpipe.core.files import refuse_links, sync, writing
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.train.records.dropped import record_dropped

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.check.clean.needed import CleanJob
    from crpipe.check.clean.spent import SpentFile
    from crpipe.core.progress import Progress


def find_spent(job: CleanJob) -> list[SpentFile]:
    """List what `crpipe clean` would delete; deletes nothing.

    Raise CheckpointError while one of the checkpoints to keep is damaged, DataError for a damaged record.
    """
    for name in job.keep:
        job.chain.named(name)
    found = list_spent(job)
    if found:
        refuse_damaged(job, FinishedLinks.read(job))
    return found


def delete_spent(job: CleanJob, progress: Progress) -> list[SpentFile]:
    """Delete what nothing needs any more, and give what was deleted; after a kill the next call goes on.

    Raise LeaseError while a workflow runs in this directory, or while a job works on one of the links.
    """
    with ExitStack() as stack:
        head = job.workplace / ".snakemake" / "head"
        try:
            stack.enter_context(lease(head, wait_s=0.0, say=progress.say))
        except LeaseError as error:
            raise LeaseError(
                f"{error}. A workflow runs in this directory: let it end, or stop it with Ctrl-C (training "
                "takes a snapshot); then clean, and start it again"
            ) from error
        held = {each.link for each in list_spent(job)}
        for link in sorted(held - {""}):
            refuse_links(job.paths.runs, job.paths.store(link))
            stack.enter_context(lease(job.paths.store(link), wait_s=0.0, say=progress.say))
        # Again: nothing changes it from here on. A link finished a moment ago waits for the next time.
        found = [each for each in find_spent(job) if each.link in {*held, ""}]
        _record(job, found)
        for each in found:
            with writing(each.path):
                each.path.unlink(missing_ok=True)
        for folder in {each.path.parent for each in found}:
            sync(folder)
        if found:
            size = sum(each.size for each in found)
            Journal(job.paths.train_journal()).add("cleaned", files=len(found), bytes=size)
    return found


def _record(job: CleanJob, found: list[SpentFile]) -> None:
    """Write down which checkpoints go, before the first one does."""
    rows: dict[Path, int] = {job.paths.receipt(each.link): each.size for each in found if each.recorded}
    if rows:
        record_dropped(job.paths.dropped(), rows)
