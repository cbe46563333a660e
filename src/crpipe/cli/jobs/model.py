"""The jobs around a model, composed from one campaign: train, evaluate, predict, generate, export, check."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.ledger import table_keys, table_paths
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.inference.card import TrainingData
from crpipe.inference.checkpoints import find_checkpoint
from crpipe.inference.evaluate import EvaluateJob, ValidationShards
from crpipe.inference.export import ExportJob
from crpipe.inference.predict import PredictJob
from crpipe.loading.loader import RangeShards
from crpipe.train.link import Link, LinkFiles, TrainJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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


def checkpoint_of(config: Config, asked: str) -> Path:
    """Find what --checkpoint names for a verb that needs no campaign."""
    return find_checkpoint(asked, config.paths(), lambda: config.chain(has_outliers=True).names)


def predict_job(
    config: Config,
    checkpoint: Path,
    inputs: Sequence[Path],
    out: Path,
    device: str,
    seed: int = 1,
    own_tables: Mapping[str, Path] | None = None,
    columns: Sequence[str] = (),
) -> PredictJob:
    """Describe the use of a checkpoint on files; needs of the campaign its side tables and sizes alone."""
    record = config.paths().tables()
    return PredictJob(
        checkpoint=checkpoint,
        inputs=tuple(inputs),
        out=out,
        tables=table_paths(record),
        table_keys=table_keys(record),
        batch_events=config.evaluate.batch_events,
        budget_items=config.load.budget_items,
        seed=seed,
        device=device,
        threads=config.train.threads,
        own_tables=own_tables or {},
        columns=tuple(columns),
        use_options=config.use_options(),
        named=_named(config),
    )


def export_job(config: Config, checkpoint: Path, out: Path) -> ExportJob:
    """Describe an export; a configuration says where the training shards are."""
    if not config.source.reader:
        return ExportJob(checkpoint, out, {}, {}, TrainingData({}, "", {}, None), _named(config))
    campaign = Campaign.open(config)
    paths = campaign.paths
    training = TrainingData(
        keys={**campaign.data_keys, **campaign.table_keys},
        data=campaign.data,
        shards={name: paths.shards(name) for name in campaign.ranges},
        outliers=paths.outliers(CONSOLIDATED),
    )
    return ExportJob(checkpoint, out, campaign.tables, campaign.table_keys, training, _named(config))
