"""`crpipe clean`: what a campaign does not need any more, and its deletion while nothing else works."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.campaign.records import EvaluationRecord, Receipt
from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError, LeaseError
from crpipe.core.files import disk_errors, is_left_over, read_json, refuse_links, sha256, sync
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.paths import FINISHED, Paths
from crpipe.core.ranges import HASH_DIGITS, ChainLink
from crpipe.core.records import Forks
from crpipe.train.deleted_checkpoints import record_deleted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress

# Which checkpoints of a run are still needed, and by what.


_BASE = 2  # links of the first round from which added ranges would go on: its last, and the one before it


@dataclass(frozen=True, slots=True)
class FinishedLinks:
    """The receipts of the finished links, in the order of the chain; ``newest``: names of those to keep."""

    receipts: Mapping[str, Receipt]
    newest: tuple[str, ...]

    @classmethod
    def read(cls, campaign: Campaign) -> FinishedLinks:
        """Read all receipts; raise DataError for a damaged one."""
        rows = {name: Receipt.read_if_any(campaign.paths.receipt(name)) for name in campaign.chain.names}
        receipts = {name: row for name, row in rows.items() if row is not None}
        return cls(receipts, tuple(receipts)[-max(campaign.config.train.keep_links, 1) :])


def reason_to_keep(campaign: Campaign, keep: Sequence[str], finished: FinishedLinks, link: ChainLink) -> str:
    """Return why the checkpoint of a finished link stays; empty when nothing needs it any more."""
    links, keep_links = campaign.chain.links, campaign.config.train.keep_links
    if not keep_links:
        return "train.keep_links is 0"
    if link.name in finished.newest:
        return f"one of the newest {keep_links}"
    if link.name in keep:
        return "named with --keep"
    row = finished.receipts[link.name]
    after = links.index(link) + 1
    following = finished.receipts.get(links[after].name) if after < len(links) else None
    if following is None or following.parent != row.sha256:
        return "the next link has not gone on from it yet"
    if link.name in [each.name for each in links if each.ranges and each.round == 1][-_BASE:]:
        return "added ranges would go on from it"
    path = campaign.paths.store(link.name) / row.checkpoint
    return next((why for user, why in _users(campaign.paths) if _means(user, path)), "")


def is_named(paths: Paths, path: Path) -> bool:
    """Return whether an evaluation or another run names a checkpoint file, whatever its receipt says."""
    return any(_means(user, path) for user, _ in _users(paths))


def _means(user: str, path: Path) -> bool:
    """Return whether a hash or a path names this checkpoint.

    The name of its file is enough, as the hash is in it: a campaign may be moved, or restored elsewhere.
    """
    return Path(user).name == path.name or user[:HASH_DIGITS] == path.stem.rpartition("-")[2]


def refuse_damaged(paths: Paths, finished: FinishedLinks) -> None:
    """Raise CheckpointError unless the checkpoints of the newest finished links are whole.

    As long as one of them is not, an older one may be needed to train it again.
    """
    for name in finished.newest:
        row = finished.receipts[name]
        path = paths.store(name) / row.checkpoint
        if not is_present(path) or sha256(path) != row.sha256:
            what = "damaged" if is_present(path) else "missing"
            raise CheckpointError(
                f"{path}: {what}; as long as one of the newest checkpoints is not whole, nothing is deleted; "
                f"see `crpipe check {name}`"
            )


def _users(paths: Paths) -> Iterator[tuple[str, str]]:
    """Yield the checkpoints that something outside of the chain names, by hash or by path, and what does."""
    evaluations = paths.evaluation("x").parent
    patterns = ("*/metrics.json", f"*/{FINISHED}/metrics.json")
    for file in sorted(path for pattern in patterns for path in evaluations.glob(pattern)):
        yield EvaluationRecord.read(file).checkpoint, f"evaluated in {file.parent}"
    forks = Forks.read_if_any(paths.forks())
    for run, path in forks.checkpoints.items() if forks else ():
        yield path, f"the run {run} begins with it"
    for file in sorted(paths.runs.glob("*/campaign.json")):
        source = Path(read_json(file).get("train.init_from") or "-")
        if source.suffix == ".json" and source.is_file():
            row = read_json(source)
            source = source.parents[1] / "store" / str(row["range"]) / str(row["checkpoint"])
        yield str(source), f"the run {file.parent.name} begins with it"


# Files of a campaign that nothing needs any more, each with the reason.


_KEPT_LOGS = 10


@dataclass(frozen=True, slots=True)
class DeletableFile:
    """A file to delete: why that is safe, and the link in whose store it is (empty for other files).

    recorded: whether it is the checkpoint of the link's receipt, which has to be recorded first.
    """

    path: Path
    size: int
    why: str
    link: str = ""
    recorded: bool = False


def list_spent(campaign: Campaign, keep: Sequence[str], workplace: Path) -> list[DeletableFile]:
    """List what may be deleted; raise DataError where a file that decides it is damaged."""
    finished = FinishedLinks.read(campaign)
    spent: list[DeletableFile] = []
    for link in campaign.chain.links:
        if link.name in finished.receipts:
            spent += _of_link(campaign, keep, finished, link)
    return [*spent, *_temporary(campaign.paths), *_logs(workplace)]


def _of_link(
    campaign: Campaign, keep: Sequence[str], finished: FinishedLinks, link: ChainLink
) -> Iterator[DeletableFile]:
    """Yield the spent files in the store of a finished link."""
    paths, links, keep_links = campaign.paths, campaign.chain.links, campaign.config.train.keep_links
    store, row = paths.store(link.name), finished.receipts[link.name]
    current = store / row.checkpoint
    receipt = paths.receipt(link.name)
    if is_present(current) and not reason_to_keep(campaign, keep, finished, link):
        after = links[links.index(link) + 1].name
        why = (
            f"checkpoint: {paths.receipt(after)} goes on from it and is finished; the newest "
            f"{keep_links} stay ({', '.join(finished.newest)})"
        )
        yield _spent(current, why, link.name, recorded=True)
    for path in sorted(store.glob("checkpoint-*.pt")):
        if keep_links and path != current and not is_named(paths, path):
            yield _spent(path, f"replaced checkpoint: {receipt} names another one", link.name)
    for path in sorted(store.glob("snapshot-*.pt")):
        yield _spent(path, f"snapshot of a finished link: {receipt}", link.name)
    for path in sorted(store.glob("*.damaged")):
        yield _spent(path, f"damaged file of a link that was finished without it: {receipt}", link.name)


def _temporary(paths: Paths) -> Iterator[DeletableFile]:
    """Yield the temporary files of killed writers; not among raw copies, which resume from theirs."""
    raw = paths.raw("")
    for top in (paths.results, paths.run_dir()):
        for folder, folders, names in os.walk(top):
            if Path(folder) == raw:
                folders.clear()
            for name in sorted(names):
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # another writer removes what is left, too
                    if not path.is_symlink() and is_left_over(path):
                        yield _spent(path, "temporary file of a writer that was killed")


def _logs(workplace: Path) -> Iterator[DeletableFile]:
    """Yield Snakemake's logs of earlier calls; their names begin with the time."""
    logs = sorted((workplace / ".snakemake" / "log").glob("*.snakemake.log"))
    for path in logs[:-_KEPT_LOGS]:
        yield _spent(path, f"log of an earlier call of snakemake; the newest {_KEPT_LOGS} stay")


def _spent(path: Path, why: str, link: str = "", *, recorded: bool = False) -> DeletableFile:
    return DeletableFile(path, path.lstat().st_size, why, link, recorded)


def find_spent(campaign: Campaign, keep: Sequence[str], workplace: Path) -> list[DeletableFile]:
    """List what `crpipe clean` would delete; deletes nothing.

    keep: further links whose checkpoints stay. workplace: the directory of the workflow, with its lease and
    its logs. Raise CheckpointError while one of the checkpoints to keep is damaged, DataError for a damaged
    record.
    """
    for name in keep:
        campaign.chain.named(name)
    spent = list_spent(campaign, keep, workplace)
    if spent:
        refuse_damaged(campaign.paths, FinishedLinks.read(campaign))
    return spent


def clean(
    campaign: Campaign, keep: Sequence[str], progress: Progress, *, workplace: Path
) -> list[DeletableFile]:
    """Delete what nothing needs any more, and return what was deleted; after a kill the next call goes on.

    Raise LeaseError while a workflow runs in this directory, or while a job works on one of the links.
    """
    paths = campaign.paths
    with ExitStack() as stack:
        head = workplace / ".snakemake" / "head"
        try:
            stack.enter_context(lease(head, wait_s=0.0, say=progress.message))
        except LeaseError as error:
            raise LeaseError(
                f"{error}. A workflow runs in this directory: let it end, or stop it with Ctrl-C (training "
                "takes a snapshot); then clean, and start it again"
            ) from error
        held = {each.link for each in list_spent(campaign, keep, workplace)}
        for link in sorted(held - {""}):
            refuse_links(paths.runs, paths.store(link))
            stack.enter_context(lease(paths.store(link), wait_s=0.0, say=progress.message))
        # Again: nothing changes it from here on. A link finished a moment ago waits for the next time.
        spent = [each for each in find_spent(campaign, keep, workplace) if each.link in {*held, ""}]
        _record(paths, spent)
        for file in spent:
            with disk_errors(file.path):
                file.path.unlink(missing_ok=True)
        for folder in {each.path.parent for each in spent}:
            sync(folder)
        if spent:
            size = sum(each.size for each in spent)
            Journal(paths.train_journal()).add("cleaned", files=len(spent), bytes=size)
    return spent


def _record(paths: Paths, spent: list[DeletableFile]) -> None:
    """Write down which checkpoints go, before the first one does."""
    rows: dict[Path, int] = {paths.receipt(each.link): each.size for each in spent if each.recorded}
    if rows:
        record_deleted(paths.deleted_checkpoints(), rows)
