"""Which events a link trains on, in which order, and where they are: what follows from its campaign."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.errors import ShardError
from crpipe.core.paths import CONSOLIDATED, MANIFEST, OUTLIERS
from crpipe.events.histograms import check_wanted, read_histograms
from crpipe.events.shard_records import ShardManifest
from crpipe.loading.loader import Loader, RangeShards
from crpipe.train.workload import UsesHistograms, give_histograms, wanted_histograms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.ranges import ChainLink
    from crpipe.events.layout import Layout
    from crpipe.train.ranks import World
    from crpipe.train.workload import Workload


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """Which events a link trains on, and in which order.

    shards, role: a folder of shards for each range, and which of them (``train`` or ``outliers``).
    seed: seed of the order of its events. epochs: passes over them.
    progress: share of the campaign at its beginning and at its end, for the learning rate.
    max_items: items at which a batch ends early; None: only the number of events ends a batch.
    validation: where the validation events are that every link of the run is validated on: those of its first
        link.
    """

    link: ChainLink
    shards: tuple[Path, ...]
    role: str
    seed: tuple[int, ...]
    epochs: int
    progress: tuple[float, float]
    max_items: int | None
    validation: tuple[RangeShards, ...]

    @classmethod
    def of(cls, campaign: Campaign, link: ChainLink) -> LinkPlan:
        """Return what follows for a link from its campaign."""
        config, paths = campaign.config, campaign.paths
        outliers, horizon = link.name == OUTLIERS, config.horizon()
        validated = campaign.chain.links[0].ranges or campaign.ranges
        return cls(
            link=link,
            shards=(paths.outliers(CONSOLIDATED),) if outliers else tuple(map(paths.shards, link.ranges)),
            role=OUTLIERS if outliers else "train",
            seed=(config.seed, zlib.crc32(link.name.encode())),
            epochs=config.train.outlier_epochs if outliers else config.train.epochs,
            progress=(1.0, 1.0) if outliers else (link.begins / horizon, link.ends / horizon),
            # Thousands of outliers in one batch would not fit into memory; bulk batches keep their size.
            max_items=config.load.budget_items if outliers else None,
            validation=tuple(RangeShards.of(paths, name) for name in validated),
        )

    def open_loader(self, campaign: Campaign, world: World) -> Loader:
        """Open the shards; raise ShardError when they were made under another configuration."""
        load = campaign.config.load
        _refuse_other_data(self.shards, campaign.data)
        return Loader(
            self.shards,
            self.role,
            batch_events=load.batch_events,
            seed=self.seed,
            epochs=self.epochs,
            rank=world.rank,
            ranks=world.size,
            prefetch=load.prefetch,
            max_items=self.max_items,
        )

    def nothing_to_train_on(self) -> str:
        """Return the message for a link without any event."""
        if not self.link.ranges:
            return f"{self.link.name}: no training event is an outlier; the checkpoint before is passed on"
        return (
            f"warning: {self.link.name}: no training event in {', '.join(self.link.ranges)}: nothing is "
            "trained, the checkpoint before is passed on; look at the ledgers, or leave them out with "
            "ranges.skip"
        )

    def use_histograms(self, campaign: Campaign, workload: Workload, layout: Layout) -> None:
        """Give the workload the histograms that it uses; raise ConfigError where one is missing.

        They are those of the link's ranges; outliers have none of their own, and get those of all ranges.
        """
        name, wanted = campaign.config.train.workload, wanted_histograms(workload)
        if wanted or isinstance(workload, UsesHistograms):
            folders = [campaign.paths.shards(each) for each in self.link.ranges or campaign.ranges]
            _refuse_other_data(folders, campaign.data)
            histograms = read_histograms(folders)
            check_wanted(name, wanted, histograms, layout)
            give_histograms(workload, name, histograms)

    def check_validation(self, campaign: Campaign) -> None:
        """Raise ShardError when validation shards were made under another configuration."""
        _refuse_other_data((folder for shards in self.validation for folder in shards), campaign.data)


def _refuse_other_data(folders: Iterable[Path], data: str) -> None:
    for folder in folders:
        if ShardManifest.read(folder / MANIFEST).data != data:
            raise ShardError(
                f"{folder}: made under another configuration; restore the values that "
                f"{folder.parents[1] / 'campaign.json'} records, or set `results` to a new directory"
            )
