"""Files of a campaign that nothing needs any more, each with the reason."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.check.clean.needed import FinishedLinks, is_named, why_needed
from crpipe.core.causes import is_present
from crpipe.core.files import is_left_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.check.clean.needed import CleanJob
    from crpipe.core.chain import ChainLink

_KEPT_LOGS = 10


@dataclass(frozen=True, slots=True)
class SpentFile:
    """A file to delete: why that is safe, and the link in whose store it is (empty for other files).

    recorded: whether it is the checkpoint of the link's receipt, which has to be recorded first.
    """

    path: Path
    size: int
    why: str
    link: str = ""
    recorded: bool = False


def list_spent(job: CleanJob) -> list[SpentFile]:
    """List what may be deleted; raise DataError where a file that decides it is damaged."""
    finished = FinishedLinks.read(job)
    found: list[SpentFile] = []
    for link in job.chain.links:
        if link.name in finished.receipts:
            found += _of_link(job, finished, link)
    return [*found, *_temporary(job), *_logs(job.workplace)]


def _of_link(job: CleanJob, finished: FinishedLinks, link: ChainLink) -> Iterator[SpentFile]:
    """Yield the spent files in the store of a finished link."""
    store, row = job.paths.store(link.name), finished.receipts[link.name]
    current = store / row["checkpoint"]
    receipt = job.paths.receipt(link.name)
    if is_present(current) and not why_needed(job, finished, link):
        after = job.chain.links[job.chain.links.index(link) + 1].name
        why = (
            f"checkpoint: {job.paths.receipt(after)} goes on from it and is finished; the newest "
            f"{job.keep_links} stay ({', '.join(finished.newest)})"
        )
        yield _spent(current, why, link.name, recorded=True)
    for path in sorted(store.glob("checkpoint-*.pt")):
        if job.keep_links and path != current and not is_named(job.paths, path):
            yield _spent(path, f"replaced checkpoint: {receipt} names another one", link.name)
    for path in sorted(store.glob("snapshot-*.pt")):
        yield _spent(path, f"snapshot of a finished link: {receipt}", link.name)
    for path in sorted(store.glob("*.damaged")):
        yield _spent(path, f"damaged file of a link that was finished without it: {receipt}", link.name)


def _temporary(job: CleanJob) -> Iterator[SpentFile]:
    """Yield the temporary files of killed writers; not among raw copies, which resume from theirs."""
    raw = job.paths.raw("")
    for top in (job.paths.results, job.paths.run_dir()):
        for folder, folders, names in os.walk(top):
            if Path(folder) == raw:
                folders.clear()
            for name in sorted(names):
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # another writer removes what is left, too
                    if not path.is_symlink() and is_left_over(path):
                        yield _spent(path, "temporary file of a writer that was killed")


def _logs(workplace: Path) -> Iterator[SpentFile]:
    """Yield Snakemake's logs of earlier calls; their names begin with the time."""
    logs = sorted((workplace / ".snakemake" / "log").glob("*.snakemake.log"))
    for path in logs[:-_KEPT_LOGS]:
        yield _spent(path, f"log of an earlier call of snakemake; the newest {_KEPT_LOGS} stay")


def _spent(path: Path, why: str, link: str = "", *, recorded: bool = False) -> SpentFile:
    return SpentFile(path, path.lstat().st_size, why, link, recorded)
