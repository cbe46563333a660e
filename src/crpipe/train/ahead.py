"""Links of seconds in one process: a job also trains the next ones, and their jobs adopt them without torch.

Starting a process and importing torch takes longer than a link of a small campaign.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from crpipe.campaign.records import Receipt
from crpipe.core.causes import is_present
from crpipe.core.errors import CrpipeError, DataError, Interrupted
from crpipe.core.files import sha256, tree_bytes
from crpipe.core.lease import lease
from crpipe.core.ranges import checkpoint_key
from crpipe.events.shard_manifest import changed_shards, shards_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.ranges import ChainLink
    from crpipe.core.text import Progress

LIMIT_S = 60.0  # of one process, for all its links
_RECEIPT = "ahead.json"


def train_ahead(
    campaign: Campaign,
    name: str,
    train: Callable[[str], None],
    progress: Progress,
    *,
    begun: float,
    stopped: Callable[[], str],
) -> None:
    """Train the links after ``name`` whose ranges are split, while all will have taken less than a minute.

    Their receipts wait in their stores for the jobs that declare them. A link that fails is left to its job.

    train: trains one link. begun: when this process began to train ``name``, all of it, in seconds of
    `time.monotonic`. stopped: tells why to stop, empty as long as there is no reason.
    """
    paths, names, trained = campaign.paths, campaign.chain.names, []
    done = _bytes(campaign, campaign.chain.named(name))
    try:
        for following in names[names.index(name) + 1 :]:
            link = campaign.chain.named(following)
            if stopped() or not _is_ready(campaign, link) or is_present(paths.receipt(following)):
                return
            more = _bytes(campaign, link)
            if (time.monotonic() - begun) * (1 + more / max(done, 1)) > LIMIT_S:
                return
            try:
                train(following)
            except Interrupted:
                raise
            except CrpipeError as error:  # its own job meets it again, and fails
                progress.message(f"{following}: {type(error).__name__}; left to its own job")
                return
            trained.append(following)
            done += more
    finally:
        for each in trained:
            paths.receipt(each).replace(paths.store(each) / _RECEIPT)


def adopt_ahead(campaign: Campaign, name: str, progress: Progress) -> bool:
    """Write the receipt of a link that an earlier job trained; False where the link has to be trained.

    Whatever does not fit, such as another key, a damaged file or changed shards, is left to training.
    """
    paths, link = campaign.paths, campaign.chain.named(name)
    store = paths.store(name)
    if not is_present(store / _RECEIPT) or not link.parent:
        return False
    with lease(store, say=progress.message):
        try:
            receipt = Receipt.read(store / _RECEIPT)
        except DataError:
            return False
        parent = Receipt.read_if_any(paths.receipt(link.parent))
        key = parent and checkpoint_key(name, campaign.fingerprint, parent.sha256, link.ranges)
        folders = map(paths.shards, link.ranges)
        if receipt.key != key or changed_shards(shards_record(store, key), folders):
            return False
        checkpoint = store / receipt.checkpoint
        if not is_present(checkpoint) or sha256(checkpoint) != receipt.sha256:
            return False
        receipt.write(paths.receipt(name))
        (store / _RECEIPT).unlink()
    progress.message(f"{name}: trained by the job before it, its checkpoint is adopted")
    return True


def _is_ready(campaign: Campaign, link: ChainLink) -> bool:
    """Return whether the ranges of a link are split: the manifests of shards are written last."""
    return bool(link.ranges) and all(is_present(campaign.paths.shard_manifest(name)) for name in link.ranges)


def _bytes(campaign: Campaign, link: ChainLink) -> int:
    """Return the size of the shards of a link."""
    return sum(tree_bytes(campaign.paths.shards(name)) for name in link.ranges)
