"""`crpipe check`: goes through all parts of a campaign, one after the other or in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.campaign.campaign import Campaign, recorded_layout
from crpipe.check.data import check_campaign_files, check_consolidated, check_range, check_run_files
from crpipe.check.findings import Agreed, CheckReport, read_agreed
from crpipe.check.training import check_evaluation, check_export, check_link, list_evaluations
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.paths import CONSOLIDATED
from crpipe.split.workers import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

    # What is checked by itself: its label, and the function, whose first argument is the report of the part.
    Part = tuple[str, Callable[..., None], tuple[Any, ...]]

# ruff: noqa: PLC0415 - only --source pays for the clients of sources.


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
    parts = [*list_parts(campaign, read_agreed(campaign), names)]
    parts += [(f"export {folder}", check_export, (campaign, folder)) for folder in exports]
    total = CheckReport()
    results = in_order(check_part, parts, processes)
    for done, ((label, *_), report) in enumerate(zip(parts, results, strict=True), 1):
        total.add(report)
        progress.update("check", done, len(parts), label)
    if source:
        from crpipe.check.source_now import check_source

        check_source(total, campaign, names, progress)
    return total


def list_parts(campaign: Campaign, agreed: Agreed, names: Sequence[str]) -> Iterator[Part]:
    """Yield the parts to check, in the order of the work."""
    links = campaign.chain.names
    all_names = {*campaign.ranges, *links, CONSOLIDATED}
    for name in names:
        if name not in all_names:
            raise ConfigError(
                f"{name}: neither a range nor a link of this campaign; `crpipe status` names them"
            )
    selected = {*names} or all_names
    yield "campaign", check_campaign_files, (campaign, agreed)
    for name in campaign.ranges:
        if name in selected:
            yield f"range {name}", check_range, (campaign, agreed, name)
    if CONSOLIDATED in selected and any(not link.ranges for link in campaign.chain.links):
        yield f"consolidated {CONSOLIDATED}", check_consolidated, (campaign, agreed)
    yield "run", check_run_files, (campaign, agreed)
    for name in links:
        if name in selected:
            yield f"link {name}", check_link, (campaign, agreed, name)
    for name in list_evaluations(campaign.paths):
        if not names or name.removesuffix(".best") in names:
            yield f"evaluation {name}", check_evaluation, (campaign, name)


def check_part(part: Part) -> CheckReport:
    """Check one part; what is wrong is looked at twice: a job may just have been replacing it."""
    first = _look(part)
    return _look(part) if first.errors else first


def _look(part: Part) -> CheckReport:
    _, function, arguments = part
    report = CheckReport()
    function(report, *arguments)
    return report
