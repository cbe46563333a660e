"""A sample of held-out events, evenly from several folders of shards, in blocks of bounded size."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from crpipe.events.batch import Events


def held_out(
    folders: Sequence[Path], role: str, *, events: int, batch_events: int, budget_items: int, seed: int
) -> Generator[tuple[int, Events]]:
    """Yield at most ``events`` events of a role in blocks, each with the number of its folder.

    A block holds at most batch_events events and, but for its last event, at most budget_items items. The
    sample and its blocks follow from the arguments and the shards alone.
    """
    share = -(-events // len(folders))
    left = events
    for number, folder in enumerate(folders):
        loader = Loader(
            folder,
            role,
            batch_events=min(share, batch_events),
            seed=(seed,),
            epochs=1,
            prefetch=0,
            max_items=budget_items,
        )
        wanted = min(share, left)
        if not wanted:
            return
        with contextlib.closing(loader.batches()) as stream:
            for found, _ in stream:
                block = found.part(0, min(len(found), wanted))
                wanted, left = wanted - len(block), left - len(block)
                if len(block):
                    yield number, block
                if not wanted:
                    break
