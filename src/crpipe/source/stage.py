"""Stage one range: verified copies of the files in its manifest, next to the results."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from crpipe.campaign.raw_files import SERVER_ONLY, StagedFile, lease_folder, read_manifest, write_staged
from crpipe.core.causes import is_present
from crpipe.core.errors import DiskError
from crpipe.core.files import refuse_links, size, tree_bytes
from crpipe.core.lease import lease
from crpipe.source.copies import Copies, CopyRules, check_free_space
from crpipe.source.listing import confirm_listing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crpipe.campaign.split_record import SplitRecord
    from crpipe.core.ranges import Range
    from crpipe.core.text import Progress
    from crpipe.source.listing import ListJob
    from crpipe.source.uris import SourceOptions


@dataclass(frozen=True, slots=True)
class StageJob:
    """The staging of one range.

    manifest, staged: tables of what is listed and what was copied. raw: directory of the copies, beside those
    of other ranges. disk_budget: bytes that the copies of all ranges may take. listing: lists the range once
    more when all is copied. split: the record of the range's split, where there may be one. accept: judges
    the first copy, and raises when it is of another schema.
    """

    name: Range
    manifest: Path
    staged: Path
    raw: Path
    on_bad_file: Literal["fail", "quarantine"]
    max_quarantined: int
    disk_budget: float
    lease_wait_s: float
    source: SourceOptions
    listing: ListJob
    split: SplitRecord | None = None
    accept: Callable[[Path], None] | None = None

    @property
    def label(self) -> str:
        """The range, as messages name it."""
        return f"range {self.name}"

    def rules(self) -> CopyRules:
        """What to do about bad files."""
        again = f"rm {shlex.quote(str(self.manifest))}; crpipe list {self.name}"
        remedy = f"restore it, or list the range again once nothing writes to it: {again}"
        return CopyRules(self.label, remedy, self.on_bad_file, self.max_quarantined, self.accept)


def stage_range(job: StageJob, progress: Progress) -> None:
    """Make a verified copy of every file in the range's manifest, then write the staged table.

    Copies that an earlier attempt verified are kept; of a finished range nothing is copied. Raise DiskError
    before the first byte when they cannot fit, LeaseError when another job stages the range, TransferError
    naming the file that cannot be copied (under ``source.on_bad_file: quarantine``: when too many cannot),
    ListingError when the source holds something else than the manifest says, DataError for a finished range
    whose listing names other files than it was made from.
    """
    entries = read_manifest(job.manifest)
    if job.split is not None and job.split.is_whole():
        write_staged(job.staged, job.split.staged_again(entries))
        progress.say(f"{job.name}: already split, nothing is copied; to make it again: {job.split.remove()}")
        return
    claim = lease_folder(job.raw)
    refuse_links(job.raw, job.raw)
    refuse_links(claim.parent, claim)
    with lease(claim, wait_s=job.lease_wait_s, say=progress.say):
        copies = Copies(job.raw, entries, job.source, job.rules(), progress)
        if copies.done:
            progress.say(
                f"{job.name}: {len(copies.done)} of {len(entries)} files are here already, verified again"
            )
        _check_disk(job, copies.needed)
        copies.run()
        confirm_listing(job.listing, copies.bad)
        files = [
            StagedFile(entry, copies.done.get(entry.path), copies.bad.get(entry.path, ""))
            for entry in entries
        ]
        write_staged(job.staged, files)
    progress.say(_summary(job.name, copies))
    by_server = sum(proof.verified == SERVER_ONLY for proof in copies.done.values())
    if by_server:
        progress.say(
            f"warning: {job.name}: {by_server} of {len(entries)} files are verified against the server that "
            "sent them only: no other server names a checksum, and a cache may keep old files"
        )
    by_size = sum(not proof.is_checked() for proof in copies.done.values())
    if by_size:
        progress.say(
            f"warning: {job.name}: {by_size} of {len(entries)} files are verified by their size only: the "
            "source names no checksum for them; source.require_checksum refuses such files"
        )


def _check_disk(job: StageJob, needed: int) -> None:
    """Raise DiskError when ``needed`` bytes do not fit on the disk or into the budget of raw copies."""
    folder = job.raw.parent
    check_free_space(folder, needed, job.label)
    own = tree_bytes(job.raw)
    ranges = (path for path in folder.iterdir() if path.is_dir() and path != lease_folder(job.raw).parent)
    others = sum(_claimed(job, other) for other in ranges if other != job.raw)
    if needed and others + own + needed > job.disk_budget:
        raise DiskError(
            f"{job.label}: {size(needed)} needed, raw copies already take {size(others + own)} of "
            f"{size(job.disk_budget)} (source.disk_budget_gib); "
            "split the staged ranges first, lower source.look_ahead, or raise the budget"
        )


def _claimed(job: StageJob, folder: Path) -> int:
    """Bytes that a range's raw copies take, or will take once a job that is still copying is done."""
    manifest = job.manifest.with_name(f"{folder.name}{job.manifest.suffix}")
    promised = sum(entry.size or 0 for entry in read_manifest(manifest)) if is_present(manifest) else 0
    return max(promised, tree_bytes(folder))


def _summary(name: Range, copies: Copies) -> str:
    ways = [proof.verified for proof in copies.done.values()]
    counts = ", ".join(f"{ways.count(way)} by {way}" for way in sorted(set(ways)))
    aside = f"; {len(copies.bad)} set aside" if copies.bad else ""
    return f"{name}: {len(copies.done)} files staged, verified: {counts or 'none'}{aside}"
