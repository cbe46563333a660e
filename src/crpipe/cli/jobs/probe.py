"""The batch that ``crpipe probe`` trains on: of shards that exist, or of raw files."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from crpipe.cli.jobs.campaign import open_campaign
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.ranges import pick
from crpipe.events.batch import concatenate
from crpipe.events.histograms import count_columns, read_histograms
from crpipe.events.shard_manifest import read_manifest
from crpipe.inference.inputs import RawInput
from crpipe.inference.probe import ProbeJob
from crpipe.loading.loader import Loader
from crpipe.split.readers import open_reader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.cli.jobs.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.events.batch import Events
    from crpipe.events.histograms import Histogram

_NO_LIMIT = 1 << 62


def probe_job(
    config: Config, inputs: Sequence[Path], name: str, steps: int, profile: Path | None, *, anomaly: bool
) -> ProbeJob:
    """Compose a probe; raise ConfigError when there are neither shards nor raw files to take a batch from."""
    campaign = open_campaign(config)
    if inputs and name:
        raise ConfigError("--in and --range: a batch is of raw files or of a range; leave one of them out")
    if inputs:
        events, source = _from_files(campaign, inputs), ", ".join(map(str, inputs))
        histograms = count_columns(events.columns, config.split.histograms)
    else:
        events, source, histograms = _from_shards(campaign, name)
    return ProbeJob(
        config.train.workload,
        config.options(),
        campaign.tables,
        config.train,
        config.load,
        config.seed,
        events,
        source,
        campaign.layout.item,
        steps,
        campaign.layout.weight,
        anomaly,
        profile,
        histograms,
    )


def _from_files(campaign: Campaign, inputs: Sequence[Path]) -> Events:
    config = campaign.config
    reader = open_reader(config.source.reader, config.options("reader"))
    wanted = config.load.batch_events
    blocks: list[Events] = []
    for block in RawInput(tuple(inputs), reader, campaign.tables).blocks(wanted, _NO_LIMIT):
        blocks.append(block)
        if sum(map(len, blocks)) >= wanted:
            break
    if not blocks:
        raise ConfigError(f"{', '.join(map(str, inputs))}: no event to train on; name other files with --in")
    whole = concatenate(blocks)
    return whole.take(np.arange(min(wanted, len(whole))))


def _from_shards(campaign: Campaign, name: str) -> tuple[Events, str, dict[str, Histogram]]:
    config, paths = campaign.config, campaign.paths
    split = [each for each in campaign.ranges if is_present(paths.shard_manifest(each))]
    name = pick(name, campaign.ranges, "range") if name else ""
    if name and name not in split:
        raise ConfigError(f"--range {name}: not split; split are: {', '.join(split[:5]) or 'none'}")
    if not split:
        raise ConfigError(
            f"no range is split yet; split one: snakemake {paths.shard_manifest(campaign.ranges[0])}; or "
            "take a batch from raw files: crpipe probe --in FILE"
        )
    chosen = name or split[0]
    read_manifest(paths.shards(chosen), campaign.data)
    size = config.load.batch_events
    loader = Loader(
        paths.shards(chosen), "train", batch_events=size, seed=(config.seed,), epochs=1, prefetch=0
    )
    with closing(loader.batches()) as stream:
        found = next(stream, None)
    if found is None:
        raise ConfigError(f"{paths.shards(chosen)}: holds no training events; name another --range")
    return found[0], f"the training shards of {chosen}", read_histograms([paths.shards(chosen)])
