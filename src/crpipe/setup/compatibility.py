"""Whether reader, simulator, workload, side tables and histograms fit together, before any job starts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.readers import check_needs
from crpipe.campaign.simulators import file_names, open_simulator
from crpipe.config.loading import AUTO, Config, did_you_mean
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, PluginError
from crpipe.core.ranges import Range
from crpipe.events.histograms import check_binnings, check_wanted
from crpipe.train.link_start import find_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crpipe.events.layout import Layout
    from crpipe.report.estimates import PlannedWorkload
    from crpipe.train.workload import Workload

# ruff: noqa: PLC0415 - the workflow checks the data without importing torch.


def check_data(campaign: Campaign) -> list[str]:
    """Compare reader, simulator, side tables, threshold and histograms; return a phrase for each.

    Raise ConfigError with the module, what is missing, and an example.
    """
    config, source = campaign.config, campaign.config.source
    check_needs(source.reader, campaign.reader.needs(), (*source.tables, *campaign.simulated_tables))
    if config.split.quantile is None:
        campaign.threshold()
    check_binnings(campaign.layout, config.split.histograms)
    checked = [f"reader {source.reader}"]
    if config.simulates():
        simulator = open_simulator(source.simulator, config.options("simulator"))
        check_simulator(campaign.layout, source.reader, simulator.layout, source.simulator)
        if config.ranges.last != AUTO:
            file_names(simulator, Range.parse(campaign.ranges[0]))  # refuses more files than fit
        checked.append(f"simulator {source.simulator}")
    return checked


def check_fit(config: Config) -> str:
    """Compare reader, simulator and workload, before any job; return one line for a person.

    Raise ConfigError with the module, what is missing, and an example.
    """
    from crpipe.train.trackers import find_loggers

    config.check_fresh()
    campaign, name = Campaign.open(config), config.train.workload
    checked = [*check_data(campaign), f"workload {name}"]
    unused = check_workload(config, campaign.layout, campaign.simulated_tables)
    find_loggers(config.train.loggers)
    if config.train.pretrained and not is_present(campaign.paths.run_config()):
        find_source(config.train.pretrained)
    remarks = "".join(f"; {each}" for each in unused)
    return f"{', '.join(checked)}: they fit together; items are {campaign.layout.item}{remarks}"


def check_workload(config: Config, layout: Layout, simulated_tables: Iterable[str]) -> list[str]:
    """Compare a workload with a layout, side tables and histograms; return a phrase on each unused member.

    Raise ConfigError with the module, what is missing, and an example.
    """
    from crpipe.inference.members import unused_members
    from crpipe.train import workload as protocol

    name = config.train.workload
    workload = protocol.build_workload(name, config.options())
    check_columns(layout, config.source.reader, workload, name)
    protocol.check_weighted(workload, name, layout)
    check_wanted(name, protocol.wanted_histograms(workload), config.split.histograms, layout)
    if isinstance(workload, protocol.UsesTables):
        check_needs(name, workload.needs, (*config.source.tables, *simulated_tables))
    # Without side tables or histograms a workload may be unable to give its phases; training asks again.
    needs_more = isinstance(workload, protocol.UsesTables | protocol.UsesHistograms)
    with contextlib.suppress(*([PluginError] if needs_more else [])):
        _check_phases(config, workload)
    return [f"nothing calls {name}.{member}: {why}" for member, why in unused_members(workload)]


def planned_workload(config: Config) -> PlannedWorkload:
    """Ask the workload for what a plan needs; raise ConfigError when it cannot be used.

    One that needs side tables for its phases counts as one batch a step.
    """
    from crpipe.report.estimates import PlannedWorkload
    from crpipe.train.answers import phases_of
    from crpipe.train.workload import build_workload

    name, batches = config.train.workload, 1
    workload = build_workload(name, config.options())
    if config.train.fresh_batches:
        with contextlib.suppress(PluginError):
            batches = max(phase.repeat for phase in phases_of(workload))
    return PlannedWorkload(tuple(workload.metrics), batches)


def _check_phases(config: Config, workload: Workload) -> None:
    """Raise ConfigError for a schedule or a metric that does not fit the phases of the workload."""
    from crpipe.train.answers import phases_of
    from crpipe.train.schedule import Schedules
    from crpipe.train.validation import find_metric

    name = config.train.workload
    asked = {phase.name: phase.schedule for phase in phases_of(workload)}
    Schedules.of(config.train, asked)
    if config.train.monitor:
        find_metric(config.train.monitor, workload, name)


def check_columns(layout: Layout, reader: str, workload: Workload, name: str) -> None:
    """Raise ConfigError when the reader's layout lacks a column that the workload reads."""
    for kind, read, fields in (
        ("event", workload.event_columns, layout.events),
        ("item", workload.item_columns, layout.items),
    ):
        known = [field.name for field in fields]
        missing = [column for column in read if column not in known]
        if missing:
            raise ConfigError(
                f"train.workload: {name} reads the {kind} columns {', '.join(missing)}, which {reader} does "
                f"not give ({', '.join(known)}){did_you_mean(missing[0], known)}; correct {kind}_columns, or "
                "name another source.reader"
            )
    needed = tuple(workload.item_columns)
    items = tuple(field.name for field in layout.items)
    if items[: len(needed)] != needed:
        raise ConfigError(
            f"train.workload: {name} reads the item columns {', '.join(needed)} by position, but the first "
            f"ones of {reader} are {', '.join(items[: len(needed)])}; write item_columns in that order, and "
            "read them so in collate"
        )


def check_simulator(layout: Layout, reader: str, simulated: Layout, simulator: str) -> None:
    """Raise ConfigError when the simulator does not make what the reader reads.

    Options of a reader may leave event columns out, narrow legal values, or group events otherwise.
    """
    ours, theirs = _columns(layout), _columns(simulated)
    named = [column for column in theirs["layout.events"] if column in ours["layout.events"]]
    theirs["layout.events"] = named or theirs["layout.events"]
    for name in ours:
        if ours[name] != theirs[name]:
            raise ConfigError(
                f"source.simulator: {simulator} makes another layout than {reader} reads: {name} is "
                f"{_only_in(theirs[name], ours[name])} and {_only_in(ours[name], theirs[name])}; name the "
                "reader of these files with source.reader, or another source.simulator"
            )


def _columns(layout: Layout) -> dict[str, Any]:
    """Return the columns of a layout without their legal values."""
    columns = {
        f"layout.{kind}": [f"{field.name} {field.dtype} {field.unit}".rstrip() for field in fields]
        for kind, fields in (("events", layout.events), ("items", layout.items))
    }
    return {"layout.item": layout.item, "layout.fixed": layout.fixed, **columns}


def _only_in(one: Any, other: Any) -> str:
    """Format a value; of a list, what only it has."""
    rest = [each for each in one if each not in other] if isinstance(one, list) else []
    return ", ".join(rest) or repr(one)
