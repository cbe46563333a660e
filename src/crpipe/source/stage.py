"""Stage one range: verified copies of the files in its manifest, or links to those that are read in place."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import SERVER_ONLY, StagedFile, lease_folder, read_manifest, write_staged
from crpipe.campaign.split_record import SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, DiskError
from crpipe.core.files import refuse_links, size, tree_bytes
from crpipe.core.lease import lease
from crpipe.core.text import counted
from crpipe.source.checksum_lists import add_listed
from crpipe.source.copies import Copies, CopyRules, check_free_space
from crpipe.source.listing import confirm_listing
from crpipe.source.uris import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress


def stage_range(campaign: Campaign, name: str, progress: Progress) -> None:
    """Make a verified copy of every file in the range's manifest, then write the staged table.

    Of a file of this machine it is a link, unless ``source.copy_local`` asks for a copy: the split reads it.
    Copies that an earlier attempt verified are kept; of a finished range nothing is copied. Raise DiskError
    before the first byte when they cannot fit, LeaseError when another job stages the range, TransferError
    naming the file that cannot be copied (under ``source.on_bad_file: quarantine``: when too many cannot),
    ListingError when the source holds something else than the manifest says, DataError for a finished range
    whose listing names other files than it was made from.
    """
    paths, raw = campaign.paths, campaign.paths.raw(name)
    entries = read_manifest(paths.manifest(name))
    record = SplitRecord.of(paths, name)
    if record.is_whole():
        write_staged(paths.staged(name), record.staged_again(entries))
        progress.message(f"{name}: already split, nothing is copied; to make it again: {record.remove()}")
        return
    claim = lease_folder(raw)
    refuse_links(raw, raw)
    refuse_links(claim.parent, claim)
    with lease(claim, say=progress.message):
        options = _options(campaign)
        entries = add_listed(options, entries, f"range {name}", progress, name)
        copies = Copies(raw, entries, options, _rules(campaign, name), progress)
        if copies.done:
            progress.message(
                f"{name}: {len(copies.done)} of {len(entries)} files are here already, verified again"
            )
        _check_disk(campaign, name, copies.needed)
        copies.run()
        confirm_listing(campaign, name, copies.bad)
        files = [
            StagedFile(entry, copies.done.get(entry.path), copies.bad.get(entry.path, ""))
            for entry in entries
        ]
        write_staged(paths.staged(name), files)
    progress.message(_summary(name, copies))
    by_server = sum(proof.verified == SERVER_ONLY for proof in copies.done.values())
    if by_server:
        progress.message(
            f"warning: {name}: {by_server} of {len(entries)} files are verified against the server that "
            "sent them only: no other server names a checksum, and a cache may keep old files"
        )
    by_size = sum(not proof.is_checked() for proof in copies.done.values())
    if by_size:
        progress.message(
            f"warning: {name}: {by_size} of {len(entries)} files are verified by their size only: the "
            "source names no checksum for them; source.require_checksum refuses such files"
        )


def _options(campaign: Campaign) -> SourceOptions:
    source = campaign.config.source
    in_place = not (source.copy_local or source.convert)  # the command's outputs are known by its copies
    return replace(SourceOptions.of(campaign.config), in_place=in_place)


def _rules(campaign: Campaign, name: str) -> CopyRules:
    """Return what to do about bad files."""
    source = campaign.config.source
    again = f"rm {shlex.quote(str(campaign.paths.manifest(name)))}; crpipe list {name}"
    remedy = f"restore what is damaged or gone, then list the range again once nothing writes to it: {again}"
    first = _first_copy_check(campaign)
    return CopyRules(f"range {name}", remedy, source.on_bad_file, source.max_quarantined, first)


def _first_copy_check(campaign: Campaign) -> Callable[[Path], None] | None:
    """Return what reads the first copy of a range with the reader; None where the split may set it aside.

    A reader whose side tables are not staged yet cannot judge, nor one of files that are made by
    ``source.convert``.
    """
    source = campaign.config.source
    if not source.reader or source.convert or campaign.config.simulates() or source.on_bad_file != "fail":
        return None
    choice = campaign.reader

    def check(copy: Path) -> None:
        with contextlib.suppress(ConfigError):
            reader = choice.open()
            reader.totals(copy)

    return check


def _check_disk(campaign: Campaign, name: str, needed: int) -> None:
    """Raise DiskError when ``needed`` bytes do not fit on the disk or into the budget of raw copies."""
    raw, label = campaign.paths.raw(name), f"range {name}"
    check_free_space(raw.parent, needed, label)
    taken = tree_bytes(raw)
    ranges = (path for path in raw.parent.iterdir() if path.is_dir() and path != lease_folder(raw).parent)
    options, paths = _options(campaign), campaign.paths
    taken += sum(_claimed(options, paths.manifest(each.name), each) for each in ranges if each != raw)
    if needed and taken + needed > (budget := campaign.raw_budget(tree_bytes(raw.parent))):
        asked = campaign.config.source.disk_budget_gib
        share = "source.disk_budget_gib" if asked else "source.disk_budget_gib: 0, most of what is free"
        way = "raise the budget" if asked else "free some space"
        raise DiskError(
            f"{label}: {size(needed)} needed, raw copies already take {size(taken)} of {size(budget)} "
            f"({share}); split the staged ranges first, lower source.prefetch_ranges, or {way}"
        )


def _claimed(options: SourceOptions, manifest: Path, folder: Path) -> int:
    """Return the bytes that a range's raw copies take, or will take once a job that still copies is done."""
    promised = options.copied_bytes(read_manifest(manifest)) if is_present(manifest) else 0
    return max(promised, tree_bytes(folder))


def _summary(name: str, copies: Copies) -> str:
    in_place = "the split, which reads them where they are"
    ways = [proof.verified if proof.checksum else in_place for proof in copies.done.values()]
    counts = ", ".join(f"{ways.count(way)} by {way}" for way in sorted(set(ways)))
    aside = f"; {len(copies.bad)} set aside" if copies.bad else ""
    return f"{name}: {counted(len(copies.done), 'file')} staged, verified: {counts or 'none'}{aside}"
