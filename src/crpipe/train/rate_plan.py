"""The learning rates of a campaign before it runs, for the figure of ``crpipe plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.events.shard_records import ShardManifest
from crpipe.report.figures import RateCurve, RatePlan
from crpipe.train.answers import phases_of
from crpipe.train.schedule import Schedules
from crpipe.train.workload import build_workload

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign


def rate_plan(campaign: Campaign) -> RatePlan:
    """Collect the schedule of each phase, and the steps of a range where ranges are split already."""
    config = campaign.config
    name = config.train.workload
    workload = build_workload(name, config.options())
    phases = phases_of(workload)
    schedules = Schedules.of(config.train, {phase.name: phase.schedule for phase in phases})
    curves = []
    for phase in phases:
        schedule, rate = schedules.of_phases.get(phase.name, schedules.common), phase.optimizer.learning_rate
        curves.append(RateCurve(phase.name, schedule.kind, schedule.factor, rate, schedule.warms_up))
    links = campaign.chain.links
    per_step = max(phase.repeat for phase in phases) if config.train.fresh_batches else 1
    return RatePlan(
        curves=tuple(curves),
        ranges_before=links[0].ranges_before,
        ranges_after=links[-1].ranges_after,
        horizon=config.horizon(),
        rounds=tuple(
            link.ranges_before
            for link, before in zip(links[1:], links[:-1], strict=True)
            if link.round > before.round
        ),
        range_steps=_range_steps(campaign, per_step),
    )


def _range_steps(campaign: Campaign, per_step: int) -> float | None:
    """Estimate the steps of a range: the mean of those that are split; None without any."""
    config = campaign.config
    manifests = [ShardManifest.read_if_any(campaign.paths.shard_manifest(name)) for name in campaign.ranges]
    events: list[int] = [
        sum(shard.events for shard in manifest.of_role("train"))
        for manifest in manifests
        if manifest is not None
    ]
    if not sum(events):
        return None
    batches = sum(events) / len(events) / config.load.batch_size / config.train.ranks
    steps: float = batches * config.train.passes_per_link / per_step
    return max(1.0, steps)
