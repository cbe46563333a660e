"""The jobs that use a checkpoint, composed from one campaign: predict, generate, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.ledger import table_keys, table_paths
from crpipe.core.paths import CONSOLIDATED
from crpipe.inference.card import TrainingData
from crpipe.inference.checkpoints import find_checkpoint
from crpipe.inference.export import ExportJob
from crpipe.inference.predict import PredictJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crpipe.config.loading import Config


def _named(config: Config) -> tuple[str, ...]:
    """Name what a checkpoint may name besides what crpipe includes."""
    return (config.train.workload, config.source.reader)


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
