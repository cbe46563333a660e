"""What the reports work on, composed from the configuration: the only place that asks it for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.files import GIB, digest
from crpipe.report.campaign_view import CampaignView, read_item

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.report.plan import PlanJob
    from crpipe.report.status.notify import NotifyJob

# Each verb pays for its own libraries only.
# ruff: noqa: PLC0415

SYNTHETIC = "synthetic:"


def view_of(config: Config) -> CampaignView:
    """Compose what all reports need to know of a campaign."""
    paths = config.paths()
    item, has_outliers = read_item(paths.layout())
    data_keys, train_keys = config.data_keys(), config.train_keys()
    return CampaignView(
        run=config.run,
        paths=paths,
        ranges=tuple(map(str, config.all_ranges())),
        skipped=tuple(config.ranges.skip),
        data=digest(data_keys),
        fingerprint=digest(train_keys),
        data_keys=data_keys,
        train_keys=train_keys,
        threshold=config.split.threshold,
        disk_budget=round(config.source.disk_budget_gib * GIB),
        item=item,
        has_outliers=has_outliers,
    )


def plan_job(config: Config) -> PlanJob:
    """Compose what a plan is made from."""
    from crpipe.report.plan import PlanJob

    source = config.source
    simulated = source.uri.startswith(SYNTHETIC)
    return PlanJob(
        view=view_of(config),
        source=source.files or source.uri,
        look_ahead=source.look_ahead,
        range_files=None if simulated else config.ranges.step,
        range_bytes=None if simulated else round(source.range_gib * GIB),
    )


def notify_job(config: Config, event: str) -> NotifyJob:
    """Compose a notification; raise ConfigError when the event is unknown."""
    from crpipe.report.status.notify import NotifyJob, check_event

    check_event(event)
    section = config.notify
    return NotifyJob(
        view=view_of(config),
        event=event,
        command=getattr(section, event),
        stall_s=section.stall_minutes * 60,
        timeout_s=section.timeout_s,
    )
