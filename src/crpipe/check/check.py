"""`crpipe check`: goes through all parts of a campaign, one after the other or in several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crpipe.campaign.campaign import Campaign, recorded_layout
from crpipe.check.data import check_campaign_files, check_consolidated, check_range, check_run_files
from crpipe.check.findings import CheckReport, read_agreed
from crpipe.check.training import check_evaluation, check_export, check_link, list_evaluations
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.paths import CONSOLIDATED
from crpipe.split.workers import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.check.findings import Agreed
    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

# ruff: noqa: PLC0415 - only --source pays for the clients of sources.


@dataclass(frozen=True, slots=True)
class Unit:
    """One part of a campaign that is checked by itself."""

    kind: Literal["campaign", "range", "consolidated", "run", "link", "evaluation", "export"]
    name: str


def open_files(config: Config) -> Campaign:
    """Describe a campaign by its files alone, whatever is damaged: a check reports it."""
    paths = config.paths()
    try:
        return Campaign(config, paths, recorded_layout(paths.layout()), {})
    except DataError:
        return Campaign(config, paths, None, {})


def check(
    campaign: Campaign,
    names: Sequence[str],
    progress: Progress,
    *,
    exports: Sequence[Path] = (),
    processes: int = 1,
    source: bool = False,
) -> CheckReport:
    """Check ranges, links and consolidated outliers; without names all; raise ConfigError for an unknown one.

    exports: folders that `crpipe export` wrote. source: list the source again, and compare it; only this may
    raise for a source that does not answer. What is damaged is a finding, and the check goes on; running and
    waiting parts are notes. Writes nothing.
    """
    agreed, units = read_agreed(campaign), [*list_units(campaign, names)]
    units += [Unit("export", str(folder)) for folder in exports]
    total = CheckReport()
    results = in_order(partial(check_unit, campaign, agreed), units, processes)
    for done, (unit, report) in enumerate(zip(units, results, strict=True), 1):
        total.add(report)
        progress.update("check", done, len(units), f"{unit.kind} {unit.name}".strip())
    if source:
        from crpipe.check.source_now import check_source

        check_source(total, campaign, names, progress)
    return total


def list_units(campaign: Campaign, names: Sequence[str]) -> Iterator[Unit]:
    """Yield the parts to check, in the order of the work."""
    links = campaign.chain.names
    all_names = {*campaign.ranges, *links, CONSOLIDATED}
    for name in names:
        if name not in all_names:
            raise ConfigError(
                f"{name}: neither a range nor a link of this campaign; `crpipe status` names them"
            )
    selected = {*names} or all_names
    yield Unit("campaign", "")
    yield from (Unit("range", name) for name in campaign.ranges if name in selected)
    if CONSOLIDATED in selected and any(not link.ranges for link in campaign.chain.links):
        yield Unit("consolidated", CONSOLIDATED)
    yield Unit("run", "")
    yield from (Unit("link", name) for name in links if name in selected)
    for name in list_evaluations(campaign.paths):
        if not names or name.removesuffix(".best") in names:
            yield Unit("evaluation", name)


def check_unit(campaign: Campaign, agreed: Agreed, unit: Unit) -> CheckReport:
    """Check one part; what is wrong is looked at twice: a job may just have been replacing it."""
    first = _look(campaign, agreed, unit)
    return _look(campaign, agreed, unit) if first.errors else first


def _look(campaign: Campaign, agreed: Agreed, unit: Unit) -> CheckReport:
    report = CheckReport()
    match unit.kind:
        case "campaign":
            check_campaign_files(report, campaign, agreed)
        case "range":
            check_range(report, campaign, agreed, unit.name)
        case "consolidated":
            check_consolidated(report, campaign, agreed)
        case "run":
            check_run_files(report, campaign, agreed)
        case "link":
            check_link(report, campaign, agreed, unit.name)
        case "evaluation":
            check_evaluation(report, campaign, unit.name)
        case "export":
            check_export(report, campaign, Path(unit.name))
    return report
