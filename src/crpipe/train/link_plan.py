"""Which events a link trains on, in which order, and where they are: what follows from its campaign."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.events.histograms import check_wanted, read_histograms
from crpipe.events.shard_manifest import open_manifest
from crpipe.loading.loader import Loader, RangeShards, sample
from crpipe.train.workload import UsesHistograms, Workload, give_histograms, wanted_histograms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.ranges import ChainLink
    from crpipe.events.batch import Events
    from crpipe.events.layout import Layout
    from crpipe.train.ranks import World


@dataclass(frozen=True)
class LinkPlan:
    """What follows for a link from its campaign: its events, their order, and where they are."""

    campaign: Campaign
    link: ChainLink

    @property
    def of_outliers(self) -> bool:
        """Whether this is the last link, which trains on the outliers of all ranges."""
        return self.link.name == OUTLIERS

    @cached_property
    def shards(self) -> tuple[Path, ...]:
        """Folders of shards: one for each range, or the consolidated outliers."""
        paths = self.campaign.paths
        if self.of_outliers:
            return (paths.outliers(CONSOLIDATED),)
        return tuple(map(paths.shards, self.link.ranges))

    @cached_property
    def seed(self) -> tuple[int, ...]:
        """Seed of the order of the events."""
        return self.campaign.config.seed, zlib.crc32(self.link.name.encode())

    @property
    def epochs(self) -> int:
        """Passes over the events."""
        train = self.campaign.config.train
        return train.outlier_epochs if self.of_outliers else train.passes_per_link

    @cached_property
    def progress(self) -> tuple[float, float]:
        """Share of the campaign at the link's beginning and at its end, for the learning rate."""
        link, horizon = self.link, self.campaign.config.horizon()
        return (1.0, 1.0) if self.of_outliers else (link.ranges_before / horizon, link.ranges_after / horizon)

    @cached_property
    def validation(self) -> tuple[RangeShards, ...]:
        """Where the validation events are: of the first link, so that all links have the same ones."""
        names = self.campaign.chain.links[0].ranges or self.campaign.ranges
        return tuple(RangeShards.of(self.campaign.paths, name) for name in names)

    def open_loader(self, world: World) -> Loader:
        """Open the shards; raise ShardError when they were made under another configuration."""
        load = self.campaign.config.load
        self._refuse_other_data(self.shards)
        return Loader(
            self.shards,
            OUTLIERS if self.of_outliers else "train",
            batch_events=load.batch_size,
            seed=self.seed,
            epochs=self.epochs,
            rank=world.rank,
            ranks=world.size,
            prefetch=load.prefetch,
            # Thousands of outliers in one batch would not fit into memory; bulk batches keep their size.
            max_items=load.max_items if self.of_outliers else None,
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

    def use_histograms(self, workload: Workload, layout: Layout) -> None:
        """Pass the histograms that it uses to the workload; raise ConfigError where one is missing.

        They are those of the link's ranges; outliers have none of their own, and get those of all ranges.
        """
        campaign, columns = self.campaign, wanted_histograms(workload)
        if columns or isinstance(workload, UsesHistograms):
            name = campaign.config.train.workload
            folders = [campaign.paths.shards(each) for each in self.link.ranges or campaign.ranges]
            self._refuse_other_data(folders)
            histograms = read_histograms(folders)
            check_wanted(name, columns, histograms, layout)
            give_histograms(workload, name, histograms)

    def training_sample(self, events: int) -> Iterator[Events]:
        """Yield at most so many training events of the link: a random sample, in blocks, for any rank."""
        load, role = self.campaign.config.load, OUTLIERS if self.of_outliers else "train"
        return sample(
            self.shards,
            role,
            events,
            batch_events=load.batch_size,
            seed=self.seed,
            max_items=load.max_items,
        )

    def check_validation(self) -> None:
        """Raise ShardError when validation shards were made under another configuration."""
        self._refuse_other_data(folder for shards in self.validation for folder in shards)

    def _refuse_other_data(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            open_manifest(folder, self.campaign.data)
