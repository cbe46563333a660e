"""A range as a pack: one job lists, copies and splits it, and only shards, outliers and records come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.campaign.claims import record_data_keys
from crpipe.campaign.code import record_data_code, used_code
from crpipe.campaign.records import PackFailure, PackRecord
from crpipe.campaign.split_record import BULK_SHARDS, OUTLIER_SHARDS, SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import PackError
from crpipe.core.files import copy_file, digest, disk_errors, make_folder, publish, remove_tree
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.text import counted
from crpipe.events.shard_records import ShardManifest
from crpipe.packs.archive import (
    FAILED,
    RANGE,
    RANGE_OUT,
    SEND_AGAIN,
    new_record,
    read_record,
    refuse_other_key,
    unpack_all,
    unpacked,
    working_folder,
    write_failure,
)
from crpipe.packs.links import PackFiles, open_unpacked
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range
from crpipe.split.split import split_range

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress


def pack_range(campaign: Campaign, name: str, out: Path, progress: Progress) -> None:
    """Write what the listing, copying and splitting of a range need beside the source into one file.

    Raise DataError where side tables or a threshold that is asked for are not there yet.
    """
    record_data_keys(campaign)
    record_data_code(campaign, name, progress.message)
    paths, files = campaign.paths, PackFiles(campaign)
    files.add_configuration()
    files.add(paths.campaign(), paths.layout(), paths.threshold(), paths.data_code())
    key = _key(campaign, name)
    files.write(out, RANGE, name, key)
    progress.message(f"{out}: range {name}, key {key}, {counted(len(files.members), 'file')}")


def _key(campaign: Campaign, name: str) -> str:
    """Return what the result of a range follows from, beside the source."""
    return digest([name, campaign.data, campaign.threshold()])


def split_pack(pack: Path, out: Path, progress: Progress) -> None:
    """List, copy and split the range of a pack in any folder; leave one file.

    It has the result, or why there is none; the raw files are deleted. Raise PackError for a pack that is not
    what was packed, and what the three steps raise, once ``out`` holds the error.
    """
    record = new_record(RANGE, "", "", "")
    with working_folder(out, progress.message) as work:
        folder = work / "campaign"
        remove_tree(folder)
        try:
            make_folder(folder)
            record = read_record(pack, (RANGE,), SEND_AGAIN)
            unpack_all(pack, folder, (RANGE,), SEND_AGAIN)
            campaign = open_unpacked(folder)
            refuse_other_key(pack, record, _key(campaign, record.name), "the reader")
            _split(campaign, record.name, progress)
            _result(campaign, record.name).write(out, RANGE_OUT, record.name, record.key)
        except KeyboardInterrupt:  # a stop, like SIGTERM, is no failure of the range
            raise
        except BaseException as error:
            write_failure(out, RANGE_OUT, record, error)
            raise


def _split(campaign: Campaign, name: str, progress: Progress) -> None:
    record_data_keys(campaign)
    journal = Journal(campaign.paths.data_journal())
    for verb, work in (("list", list_range), ("stage", stage_range), ("split", split_range)):
        with journal.attempt(verb, name):
            work(campaign, name, progress)


def _result(campaign: Campaign, name: str) -> PackFiles:
    """Collect shards, outliers and the record of a split, from which all else is restored."""
    paths, record = campaign.paths, SplitRecord.of(campaign.paths, name)
    files = PackFiles(campaign)
    for file, folder in ((BULK_SHARDS, record.shards), (OUTLIER_SHARDS, record.outliers)):
        files.add_entries(folder, ShardManifest.read(record.folder / file).shards)
    files.add(*record.folder.iterdir(), paths.data_journal(), paths.data_code())
    return files


def unpack_range(
    campaign: Campaign, pack: Path, record: PackRecord, progress: Progress
) -> PackFailure | None:
    """Put what came back for a range into the campaign, its ledger and manifests last; safe to run again.

    Return why the work failed, if it did. Raise PackError when the pack is not whole or of another key than
    the configuration gives here, or where the reader on the node has other code.
    """
    name, paths = record.name, campaign.paths
    if _key(campaign, name) != record.key:
        raise PackError(
            f"{pack}: of key {record.key}, and range {name} has the key {_key(campaign, name)} here: other "
            f"data keys, tables or threshold; pack it again (crpipe pack {name} --data --out FILE)"
        )
    record_data_keys(campaign)
    finished = SplitRecord.of(paths, name)
    with (
        lease(finished.shards, say=progress.message),
        unpacked(pack, finished.shards, (RANGE_OUT,)) as incoming,
    ):
        failure = PackFailure.read_if_any(incoming / FAILED)
        if failure is None and not finished.is_whole():
            _take(campaign, record, incoming, finished)
    if failure is None:  # the record is whole: these restore what follows from it, and copy nothing
        list_range(campaign, name, progress)
        split_range(campaign, name, progress)
    return failure


def _take(campaign: Campaign, record: PackRecord, incoming: Path, finished: SplitRecord) -> None:
    """Move shards and outliers to their places, and then the record, which makes the range finished."""
    paths, files = campaign.paths, PackFiles(campaign)
    journal, code = files.name(paths.data_journal()), files.name(paths.data_code())
    tops = {files.name(finished.shards): finished.shards, files.name(finished.outliers): finished.outliers}
    part = finished.folder.with_suffix(".part")
    tops[files.name(finished.folder)] = part
    targets = {}
    for file in record.files:
        top = file.rpartition("/")[0]
        if top in tops:
            targets[file] = tops[top] / file.rpartition("/")[2]
        elif file not in (journal, code):
            raise PackError(
                f"{file}: no file of range {record.name}; no `crpipe split --pack` made this pack"
            )
    used, here = used_code(incoming / code), used_code(paths.data_code())
    if here and used != here:
        raise PackError(
            f"range {record.name}: split with other code than the ranges here: "
            f"{', '.join(map(str, used.values()))}, here {', '.join(map(str, here.values()))}; install the "
            "same version on both machines, and run its job again"
        )
    remove_tree(part)
    with disk_errors(part):
        make_folder(part)
    for file, target in targets.items():
        copy_file(incoming / file, target)
    if is_present(incoming / journal):
        Journal(paths.data_journal()).merge(incoming / journal)
    publish(part, finished.folder)
