"""Which checkpoints of a run are still needed, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present
from crpipe.core.chain import HASH_DIGITS
from crpipe.core.errors import CheckpointError
from crpipe.core.files import read_json, read_json_if_any, sha256
from crpipe.core.paths import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from crpipe.core.chain import Chain, ChainLink
    from crpipe.core.paths import Paths

_BASE = 2  # links of the first round from which added ranges would go on: its last, and the one before it


@dataclass(frozen=True, slots=True)
class CleanJob:
    """A campaign and one of its runs.

    keep_links: newest finished links whose checkpoints stay; 0: all checkpoints stay. keep: further links
    whose checkpoints stay. workplace: the directory of the workflow, with its lease and its logs.
    """

    paths: Paths
    chain: Chain
    keep_links: int
    keep: tuple[str, ...]
    workplace: Path


@dataclass(frozen=True, slots=True)
class FinishedLinks:
    """The receipts of the finished links, in the order of the chain; ``newest``: names of those to keep."""

    receipts: Mapping[str, Mapping[str, Any]]
    newest: tuple[str, ...]

    @classmethod
    def read(cls, job: CleanJob) -> FinishedLinks:
        """Read all receipts; raise DataError for a damaged one."""
        found = {name: read_json_if_any(job.paths.receipt(name)) for name in job.chain.names}
        receipts = {name: row for name, row in found.items() if row is not None}
        return cls(receipts, tuple(receipts)[-max(job.keep_links, 1) :])


def why_needed(job: CleanJob, finished: FinishedLinks, link: ChainLink) -> str:
    """Say why the checkpoint of a finished link stays; empty when nothing needs it any more."""
    if not job.keep_links:
        return "train.keep_links is 0"
    if link.name in finished.newest:
        return f"one of the newest {job.keep_links}"
    if link.name in job.keep:
        return "named with --keep"
    row = finished.receipts[link.name]
    place = job.chain.links.index(link) + 1
    following = finished.receipts.get(job.chain.links[place].name) if place < len(job.chain.links) else None
    if following is None or following["parent"] != row["sha256"]:
        return "the next link has not gone on from it yet"
    if link.name in [each.name for each in job.chain.links if each.ranges and each.round == 1][-_BASE:]:
        return "added ranges would go on from it"
    path = job.paths.store(link.name) / row["checkpoint"]
    return next((why for user, why in _users(job.paths) if _means(user, path)), "")


def is_named(paths: Paths, path: Path) -> bool:
    """Return whether an evaluation or another run names a checkpoint file, whatever its receipt says."""
    return any(_means(user, path) for user, _ in _users(paths))


def _means(user: str, path: Path) -> bool:
    """Return whether a hash or a path names this checkpoint.

    The name of its file is enough, as the hash is in it: a campaign may be moved, or restored elsewhere.
    """
    return Path(user).name == path.name or user[:HASH_DIGITS] == path.stem.rpartition("-")[2]


def refuse_damaged(job: CleanJob, finished: FinishedLinks) -> None:
    """Raise CheckpointError unless the checkpoints of the newest finished links are whole.

    As long as one of them is not, an older one may be needed to train it again.
    """
    for name in finished.newest:
        row = finished.receipts[name]
        path = job.paths.store(name) / row["checkpoint"]
        if not is_present(path) or sha256(path) != row["sha256"]:
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
        yield str(read_json(file)["checkpoint"]), f"evaluated in {file.parent}"
    for run, path in (read_json_if_any(paths.forks()) or {}).items():
        yield path, f"the run {run} begins with it"
    for file in sorted(paths.runs.glob("*/campaign.json")):
        source = Path(read_json(file).get("train.init_from") or "-")
        if source.suffix == ".json" and source.is_file():
            row = read_json(source)
            source = source.parents[1] / "store" / str(row["range"]) / str(row["checkpoint"])
        yield str(source), f"the run {file.parent.name} begins with it"
