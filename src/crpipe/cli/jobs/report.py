"""What the reports work on, as plain values: the only place that asks the configuration for them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.campaign.ledger import table_keys
from crpipe.campaign.view import CampaignView, read_layout
from crpipe.core.files import GIB, digest
from crpipe.core.paths import HELD_OUT

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.events.layout import Layout
    from crpipe.report.estimates import Batching, PlanJob, SourceLook
    from crpipe.report.notify import NotifyJob
    from crpipe.report.page.document import ConfiguredKey
    from crpipe.train.workload import Workload

# Each verb pays for its own libraries only.
# ruff: noqa: PLC0415


def view_of(config: Config, layout: Layout | None = None) -> CampaignView:
    """Compose what all reports need to know of a campaign.

    ``layout`` is used until a job has recorded one. The reader is not asked for it: importing it takes as
    long as all the rest.
    """
    paths = config.paths()
    layout = read_layout(paths.layout()) or layout
    identity = {} if layout is None else layout.identity()
    tables = table_keys(paths.tables())
    data_keys, train_keys = config.data_keys() | identity, config.train_keys() | identity
    return CampaignView(
        run=config.run,
        paths=paths,
        ranges=tuple(map(str, config.all_ranges())),
        skipped=tuple(config.ranges.skip),
        chain=config.chain(has_outliers=layout is None or layout.has_outliers()),
        data="" if layout is None else digest(data_keys | tables),
        fingerprint="" if layout is None else digest(train_keys | tables),
        data_keys=data_keys,
        train_keys=train_keys | tables,
        threshold=config.split.threshold,
        disk_budget=round(config.source.disk_budget_gib * GIB),
        layout=layout,
        duplicates=config.ranges.duplicates == "allow",
    )


def plan_job(config: Config, seen: SourceLook | None = None) -> PlanJob:
    """Compose what a plan is made from; raise ConfigError when the reader or simulator cannot be used."""
    from crpipe.campaign.readers import open_reader
    from crpipe.campaign.simulators import open_simulator
    from crpipe.report.estimates import PlanJob, SourceLook
    from crpipe.train.workload import build_workload

    source, workload = config.source, build_workload(config.train.workload, config.options())
    files, size = config.ranges.step, round(source.range_gib * GIB)
    if config.simulates():
        simulator = open_simulator(source.simulator, config.options("simulator"))
        files = len(simulator.files(config.all_ranges()[0]))
    if source.max_files:
        size = round(size * min(1, source.max_files / files))
        files = min(files, source.max_files)
    return PlanJob(
        view=view_of(config, open_reader(source.reader, config.options("reader")).layout),
        source=source.files or source.uri,
        look_ahead=source.look_ahead,
        range_files=files,
        range_bytes=None if config.simulates() else size,
        held_out=_held_out(config),
        metrics=tuple(workload.metrics),
        batching=_batching(config, workload),
        max_files=source.max_files,
        seen=seen or SourceLook(),
    )


def _batching(config: Config, workload: Workload) -> Batching:
    """Say how many events a step takes; a workload that needs side tables for its phases counts as one."""
    from crpipe.core.causes import Foreign
    from crpipe.core.errors import ForeignError
    from crpipe.report.estimates import Batching

    train, split = config.train, config.split
    per_step = 1
    if train.fresh_batches:
        with contextlib.suppress(ForeignError), Foreign(f"train.workload: {train.workload}.phases failed"):
            per_step = max(phase.repeat for phase in workload.phases())
    shares = [getattr(split, f"{part}_fraction") for part in HELD_OUT]
    return Batching(
        events=config.load.batch_events,
        budget_items=config.load.budget_items,
        ranks=train.ranks,
        epochs=train.epochs,
        per_step=per_step,
        held_out=sum(shares),
        judged=shares[-1] or shares[0],
    )


def _held_out(config: Config) -> tuple[str, ...]:
    """Say what is held out, part by part; nothing where nothing is."""
    found = []
    for part in HELD_OUT:
        share = getattr(config.split, f"{part}_fraction")
        files = getattr(config.split, f"{part}_files")
        if share:
            found.append(f"{share:.3g} of the groups (split.{part}_fraction)")
        elif files:
            found.append(f"files {', '.join(map(str, files))} (split.{part}_files)")
    return tuple(found)


def configured_keys(config: Config) -> list[ConfiguredKey]:
    """List every key with its value and its default, also the options of what the configuration names."""
    from crpipe.config.loading import validate
    from crpipe.config.reference import entries
    from crpipe.report.page.document import ConfiguredKey

    def plain(value: object) -> str:
        return "" if value is None or value == "" else str(value)

    source = config.source
    named = {"uri": source.uri, "files": source.files, "reader": source.reader, "simulator": source.simulator}
    default = validate({"source": named, "train": {"workload": config.train.workload}})
    known = {each.dotted: plain(each.value) for each in entries(default) if not each.section}
    # What has no default is shown as set by the user.
    known |= dict.fromkeys((f"source.{name}" for name in named), "") | {"train.workload": ""}
    return [
        ConfiguredKey(each.dotted, plain(each.value), known.get(each.dotted, ""))
        for each in entries(config)
        if not each.section
    ]


def notify_job(config: Config, event: str) -> NotifyJob:
    """Compose a notification; raise ConfigError when the event is unknown."""
    from crpipe.report.notify import NotifyJob, check_event

    check_event(event)
    section = config.notify
    return NotifyJob(
        view=view_of(config),
        event=event,
        command=getattr(section, event),
        stall_s=section.stall_minutes * 60,
        timeout_s=section.timeout_s,
    )
