"""The jobs around a model, composed from one campaign: train and evaluate."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.inference.checkpoints import find_checkpoint
from crpipe.inference.evaluate import EvaluateJob, ValidationShards
from crpipe.loading.loader import RangeShards
from crpipe.train.link import Link, LinkFiles, TrainJob

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.core.ranges import ChainLink


def train_job(campaign: Campaign, name: str) -> TrainJob:
    """Describe the training of one link; raise ConfigError when the campaign has no such link."""
    config, paths = campaign.config, campaign.paths
    place = campaign.chain.named(name)
    link = _link(campaign, place)
    return TrainJob(
        link=link,
        files=LinkFiles(
            store=paths.store(name),
            receipt=paths.receipt(name),
            best=paths.best_receipt(name),
            parent_store=paths.store(link.parent) if link.parent else None,
            parent_receipt=paths.receipt(link.parent) if link.parent else None,
            parent_best=paths.best_receipt(link.parent) if link.parent else None,
            journal=paths.train_journal(),
            events=paths.tensorboard(),
            # TensorBoard reads the files of a folder in the order of their names: that of the chain.
            event_file=f"{campaign.chain.names.index(name):06d}.{name}",
            profile=paths.run_dir() / "profile.json",
            loaded=paths.init_from(),
        ),
        workload=config.train.workload,
        options=config.options(),
        tables=campaign.tables,
        keys=campaign.run_keys,
        fingerprint=campaign.fingerprint,
        data=campaign.data,
        seed=config.seed,
        load=config.load,
        train=config.train,
    )


def _link(campaign: Campaign, place: ChainLink) -> Link:
    config, paths = campaign.config, campaign.paths
    outliers = place.name == OUTLIERS
    horizon = config.horizon()
    judges = campaign.chain.links[0].ranges or campaign.ranges
    return Link(
        name=place.name,
        parent=place.parent,
        ranges=place.ranges,
        shards=(paths.outliers(CONSOLIDATED),) if outliers else _folders(campaign, place.ranges),
        role=OUTLIERS if outliers else "train",
        seed=(config.seed, zlib.crc32(place.name.encode())),
        epochs=config.train.outlier_epochs if outliers else config.train.epochs,
        progress=(1.0, 1.0) if outliers else (place.begins / horizon, place.ends / horizon),
        # Thousands of outliers in one batch would not fit into memory; bulk batches keep their size.
        max_items=config.load.budget_items if outliers else None,
        validation=tuple(_stored(campaign, each) for each in judges),
        counted=_folders(campaign, place.ranges or campaign.ranges),
        round=place.round,
        last=place.name == campaign.chain.names[-1],
    )


def _folders(campaign: Campaign, ranges: Sequence[str]) -> tuple[Path, ...]:
    return tuple(campaign.paths.shards(name) for name in ranges)


def _stored(campaign: Campaign, name: str) -> RangeShards:
    return RangeShards(campaign.paths.shards(name), campaign.paths.outliers(name))


def evaluate_job(campaign: Campaign, name: str, asked: str = "") -> EvaluateJob:
    """Describe the evaluation of one checkpoint: on the held-out events of all ranges up to its link.

    name: the link; empty: that of the checkpoint. asked: what --checkpoint says; empty: the checkpoint of
    the link that evaluate.checkpoint chooses. Results of another checkpoint than that have a folder of
    their own. Raise ConfigError when the link is not known.
    """
    config, paths = campaign.config, campaign.paths
    label = name
    if asked in ("best", "latest") and name:
        asked = name if asked == "latest" else f"{name}.best"
    if asked:
        receipt = find_checkpoint(asked, paths, lambda: campaign.chain.names)
        name, label = _judged(campaign, name, receipt)
    else:
        best = paths.best_receipt(name)
        receipt = best if config.evaluate.checkpoint == "best" and is_present(best) else paths.receipt(name)
    chain = campaign.chain.seen(campaign.chain.named(name))
    simulates = config.simulates()
    return EvaluateJob(
        name=label,
        receipt=receipt,
        shards=tuple(ValidationShards(each, _stored(campaign, each), paths.manifest(each)) for each in chain),
        folder=paths.evaluation(label),
        journal=paths.train_journal(),
        tensorboard=paths.tensorboard(),
        layout=campaign.layout,
        tables=campaign.tables,
        table_keys=campaign.table_keys,
        events=config.evaluate.events,
        batch_events=config.evaluate.batch_events,
        budget_items=config.load.budget_items,
        seed=config.seed,
        device=config.train.device,
        threads=config.train.threads,
        use_options=config.use_options(),
        simulator=config.source.simulator if simulates else "",
        simulator_options=config.options("simulator") if simulates else None,
        tests=bool(config.split.test_fraction or config.split.test_files),
        named=_named(config),
    )


def _named(config: Config) -> tuple[str, ...]:
    """Name what a checkpoint may name besides what crpipe includes."""
    return (config.train.workload, config.source.reader)


def _judged(campaign: Campaign, name: str, found: Path) -> tuple[str, str]:
    """Give the link of a receipt or checkpoint, and the name of the folder of its evaluation."""
    own = found.suffix == ".json" and found.parent == campaign.paths.receipt("x").parent
    label = found.stem
    link = name or (label.removesuffix(".best") if own else found.parent.name)
    if campaign.chain.find(link) is None:
        raise ConfigError(
            f"{found}: not of a link of this campaign; name the link up to whose ranges it is judged: "
            f"crpipe evaluate LINK --checkpoint {found}"
        )
    return link, label
