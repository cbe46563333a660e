"""The box of ``crpipe summary``: where every event and muon went, and how good the final checkpoint is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.report.evaluations import ERROR, FLOOR, METRICS, evaluations
from crpipe.report.status.campaign_state import collect
from crpipe.report.status.range_state import optional
from crpipe.report.status.status_types import DESTINATIONS, State, Sums
from crpipe.report.text import Column, counted, number, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.config.loading import Config
    from crpipe.report.status.status_types import CampaignStatus

WIDTH = 80
LABEL = 14
_INNER = WIDTH - 4
_NAMED = 10  # quarantined files that are shown
_GOOD, _BAD = "✓", "✗"
_TITLES = {"train": "bulk (train)"}


def render_summary(config: Config) -> str:
    """Draw the box, 80 columns wide; raise DataError when a file that it reads is damaged."""
    status = collect(config)
    sections = [
        ("events and muons", list(_sums(status))),
        ("campaign", list(_campaign(config, status))),
        ("held-out evaluation", list(_quality(config))),
    ]
    lines = []
    for index, (title, content) in enumerate(sections):
        lines += [_rule("├┤" if index else "╭╮", title), *(_row(line) for line in content)]
    return "\n".join([*lines, _rule("╰╯", "")])


def _rule(ends: str, title: str) -> str:
    text = f" {title} " if title else ""
    return f"{ends[0]}─{text}{'─' * (WIDTH - 3 - len(text))}{ends[1]}"


def _row(text: str) -> str:
    return f"│ {text:<{_INNER}} │"


def _paragraph(label: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, _INNER - LABEL, break_on_hyphens=False)
    return [f"{label if index == 0 else '':<{LABEL}}{line}" for index, line in enumerate(lines)]


def _sums(status: CampaignStatus) -> Iterator[str]:
    kinds = {"events": status.ledgers.events, "muons": status.ledgers.muons}
    names = ("listed", *DESTINATIONS)
    columns = [Column("", ["events", "muons"])]
    for name in names:
        cells = [number(getattr(sums, name)) for sums in kinds.values()]
        columns.append(Column(_TITLES.get(name, name), cells, right=True))
    columns.append(Column("sum", [_check(sums.balanced()) for sums in kinds.values()], right=True))
    if sum(column.width() + 2 for column in columns) <= _INNER:
        yield from table(columns, _INNER)
    else:
        for kind, sums in kinds.items():
            yield from _equation(kind, sums)


def _equation(kind: str, sums: Sums) -> Iterator[str]:
    """Write large sums one below the other."""
    yield f"{kind:<{LABEL}}{number(sums.listed):>22}  listed  {_check(sums.balanced())}"
    for name in DESTINATIONS:
        yield f"{'':<{LABEL}}{number(getattr(sums, name)):>22}  {_TITLES.get(name, name)}"


def _check(good: bool) -> str:
    return _GOOD if good else _BAD


def _campaign(config: Config, status: CampaignStatus) -> Iterator[str]:
    ledgers = status.ledgers
    balanced = f"{ledgers.count - len(ledgers.unbalanced)} of {ledgers.count} balance"
    unbalanced = f", not {', '.join(ledgers.unbalanced)}" if ledgers.unbalanced else ""
    yield from _paragraph("ledgers", f"{balanced}{unbalanced}; the campaign has {len(status.chain())} ranges")
    yield from _paragraph("outliers", _outliers(config, ledgers.events.outliers))
    yield from _quarantined(config, ledgers.quarantined)
    states = status.states()
    yield from _paragraph("trained", f"{states[State.TRAINED]} of {counted(len(status.chain()), 'range')}")
    yield from _checkpoint(config)
    report = config.paths().run_dir() / "report.html"
    yield from _paragraph("report", str(report) if report.exists() else f"not made yet ({report})")


def _outliers(config: Config, events: int) -> str:
    manifest = optional(config.paths().outlier_manifest(CONSOLIDATED))
    if manifest is None:
        return f"{number(events)} in the ranges, not consolidated yet"
    merged = sum(shard["events"] for shard in manifest["shards"])
    sign = "=" if merged == events else "≠"
    return f"consolidated {number(merged)} {sign} {number(events)} in the ranges  {_check(merged == events)}"


def _quarantined(config: Config, count: int) -> Iterator[str]:
    yield from _paragraph("quarantined", counted(count, "file"))
    named = list(_bad_files(config)) if count else []
    for text in named[:_NAMED]:
        yield from _paragraph("", text)
    if len(named) > _NAMED:
        yield from _paragraph("", f"… and {len(named) - _NAMED} more, see the ledgers")


def _bad_files(config: Config) -> Iterator[str]:
    for name in map(str, config.all_ranges()):
        ledger = optional(config.paths().ledger(name))
        for item in ledger["files"] if ledger is not None else ():
            if item["state"] == "quarantined":
                yield f"{name}/{item['path']}: {item['reason']}"


def _checkpoint(config: Config) -> Iterator[str]:
    receipt = last_receipt(config)
    if receipt is None:
        yield from _paragraph("checkpoint", "none yet")
        return
    path = config.paths().store(receipt["range"]) / receipt["checkpoint"]
    yield from _paragraph("checkpoint", f"{path.parent}/")
    yield from _paragraph("", path.name)
    seen = f"{number(receipt['events'])} events, {number(receipt['muons'])} muons"
    skipped = f", {counted(receipt['skipped'], 'step')} skipped" if receipt["skipped"] else ""
    yield from _paragraph("steps", f"{number(receipt['step'])}: {seen}{skipped}")


def last_receipt(config: Config) -> dict[str, Any] | None:
    """Read the receipt of the chain's last finished link, that on the outliers included."""
    for name in (OUTLIERS, *map(str, reversed(config.all_ranges()))):
        receipt = optional(config.paths().receipt(name))
        if receipt is not None:
            return receipt
    return None


def _quality(config: Config) -> Iterator[str]:
    newest = next(evaluations(config), None)
    if newest is None:
        yield "not evaluated yet"
        return
    values = newest.numbers
    names = [name for name in METRICS if name in values]
    columns = [
        Column("metric", [METRICS[name] for name in names]),
        Column("generated", [_figure(values, name) for name in names]),
        Column("simulated again", [_figure(values, FLOOR + name) for name in names], drop=1),
    ]
    yield from table(columns, _INNER)
    yield from _paragraph("figures", f"{newest.path.parent}/")


def _figure(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return ""
    error = values.get(name + ERROR)
    return f"{values[name]:.3f}" + ("" if error is None else f" ± {error:.3f}")
