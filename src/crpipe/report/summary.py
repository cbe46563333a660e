"""`crpipe summary` as box and JSON: where every event went, and how good the final checkpoint is."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crpipe.campaign.ledger import Ledger, LedgerSums
from crpipe.campaign.records import BestReceipt, Receipt
from crpipe.core.causes import is_present
from crpipe.core.paths import CONSOLIDATED
from crpipe.core.text import Column, counted, json_text, measured, number, shorten, table
from crpipe.events.layout import not_enough
from crpipe.events.shard_records import ShardManifest
from crpipe.report.evaluations import COLUMNS, evaluations
from crpipe.report.page.marks import DIFFERS, SAME, SIGNS, WORDS, mark, sample_of, terms_of
from crpipe.report.state import collect
from crpipe.report.status import empty_line, weight_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.evaluations import Evaluation, Measure
    from crpipe.report.state_types import CampaignStatus, Sums

WIDTH = 80
LABEL = 14
_INNER = WIDTH - 4
_NAMED = 10  # quarantined files that are shown
_SHOWN = 20  # numbers of an evaluation that are shown
_TITLE = 20  # least width of a metric's title, in characters
_DROP = {"values": 0, "again": 2, "baseline": 1}  # which column is dropped first where numbers are long
_GOOD, _BAD = "✓", "✗"
_TITLES = {"train": "bulk (train)"}


def render_summary(campaign: Campaign) -> str:
    """Return the box, 80 columns wide; raise DataError when a file that it reads is damaged."""
    status, newest = collect(campaign), next(evaluations(campaign), None)
    sections = [
        (f"events and {shorten(campaign.item, _INNER // 2)}", list(_sums(status))),
        ("campaign", list(_campaign(campaign, status))),
        (_heading(newest), list(_evaluation(newest))),
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
    kinds = {"events": status.ledgers.events, shorten(status.item, LABEL - 1): status.ledgers.items}
    columns = [Column("", list(kinds))]
    for name in ("listed", *status.ledgers.events.shown()):
        cells = [number(getattr(sums, name)) for sums in kinds.values()]
        columns.append(Column(_TITLES.get(name, name), cells, right=True))
    columns.append(Column("sum", [_check(sums.balanced()) for sums in kinds.values()], right=True))
    if sum(column.width() + 2 for column in columns) <= _INNER:
        yield from table(columns, _INNER)
    else:
        for kind, sums in kinds.items():
            yield from _equation(kind, sums)
    if status.ledgers.empty:
        yield from _paragraph(
            "empty", empty_line(status.ledgers.empty, status.ledgers.events.listed, status.item)
        )
    if status.ledgers.weights:
        yield from _paragraph("weights", weight_line(status.ledgers.weights))


def _equation(kind: str, sums: Sums) -> Iterator[str]:
    """Write large sums one below the other."""
    yield f"{kind:<{LABEL}}{number(sums.listed):>22}  listed  {_check(sums.balanced())}"
    for name in sums.shown():
        yield f"{'':<{LABEL}}{number(getattr(sums, name)):>22}  {_TITLES.get(name, name)}"


def _check(good: bool) -> str:
    return _GOOD if good else _BAD


def _campaign(campaign: Campaign, status: CampaignStatus) -> Iterator[str]:
    ledgers = status.ledgers
    balanced = f"{ledgers.count - len(ledgers.unbalanced)} of {ledgers.count} balance"
    unbalanced = f", not {', '.join(ledgers.unbalanced)}" if ledgers.unbalanced else ""
    yield from _paragraph("ledgers", f"{balanced}{unbalanced}; the campaign has {len(status.chain())} ranges")
    if campaign.has_outliers:
        yield from _paragraph("outliers", _outliers(campaign, ledgers.events.large()))
    yield from _quarantined(campaign, ledgers.quarantined)
    yield from _paragraph("trained", status.trained_of())
    yield from _checkpoint(campaign)
    report = campaign.paths.report()
    yield from _paragraph("report", str(report) if is_present(report) else f"not written yet ({report})")


def _outliers(campaign: Campaign, events: int) -> str:
    merged = _consolidated(campaign)
    if merged is None:
        return f"{number(events)} in the ranges, not consolidated yet"
    sign = "=" if merged == events else "≠"
    return f"consolidated {number(merged)} {sign} {number(events)} in the ranges  {_check(merged == events)}"


def _quarantined(campaign: Campaign, count: int) -> Iterator[str]:
    yield from _paragraph("quarantined", counted(count, "file"))
    files = quarantined_files(campaign) if count else ()
    named = [f"{name}/{path}: {reason}" for name, path, reason in files]
    for text in named[:_NAMED]:
        yield from _paragraph("", text)
    if len(named) > _NAMED:
        yield from _paragraph("", f"… and {len(named) - _NAMED} more, see the ledgers")


def quarantined_files(campaign: Campaign) -> Iterator[tuple[str, str, str]]:
    """Yield range, path and reason of each quarantined file."""
    for name in campaign.ranges:
        path = campaign.paths.ledger(name)
        sums = LedgerSums.read_if_any(path)
        for file in Ledger.read(path).files if sums and sums.quarantined else ():
            if file.state == "quarantined":
                yield name, file.path, file.reason


def _checkpoint(campaign: Campaign) -> Iterator[str]:
    receipt = last_receipt(campaign)
    if receipt is None:
        yield from _paragraph("checkpoint", "none yet")
        return
    path = campaign.paths.store(receipt.range) / receipt.checkpoint
    yield from _paragraph("checkpoint", f"{path.parent}/")
    yield from _paragraph("", path.name)
    seen = f"{number(receipt.events)} events, {number(receipt.items)} {campaign.item}"
    skipped = f", {counted(receipt.skipped, 'step')} skipped" if receipt.skipped else ""
    yield from _paragraph("steps", f"{number(receipt.step)}: {seen}{skipped}")
    if receipt.stopped:
        yield from _paragraph("early stop", receipt.stopped)
    best = _best_of(campaign, receipt)
    if best is not None:
        yield from _paragraph("best", f"{best.metric} {measured(best.value)} at step {number(best.step)}")
        yield from _paragraph("", best.checkpoint)


def last_receipt(campaign: Campaign) -> Receipt | None:
    """Read the receipt of the chain's last finished link."""
    for name in reversed(campaign.chain.names):
        receipt = Receipt.read_if_any(campaign.paths.receipt(name))
        if receipt is not None:
            return receipt
    return None


def _best_of(campaign: Campaign, receipt: Receipt) -> BestReceipt | None:
    """Read the receipt of a finished link's best checkpoint; None where it is of another training."""
    best = BestReceipt.read_if_any(campaign.paths.best_receipt(receipt.range))
    return best if best and best.key == receipt.key else None


def _heading(newest: Evaluation | None) -> str:
    return "held-out evaluation" + (f" ({newest.part} events)" if newest is not None else "")


def _evaluation(newest: Evaluation | None) -> Iterator[str]:
    if newest is None:
        yield "not evaluated yet"
        return
    missing = newest.missing()
    measures = [each for each in newest.measures() if each not in missing]
    if newest.events == 0:
        yield "not enough: no event is held out, so there are no numbers"
    elif measures:
        yield from _numbers(newest, measures[:_SHOWN])
        yield from _verdicts(newest, measures[:_SHOWN])
    else:
        yield "no numbers: too few held-out events for any metric"
    if missing and newest.events and newest.groups:
        needs = [(each.title, each.need) for each in missing]
        yield from _paragraph("not enough", not_enough(needs, newest.events, newest.groups))
    elif missing and newest.events != 0:
        yield from _paragraph("not enough", f"for {', '.join(each.title for each in missing)}")
    folder = newest.path.parent
    more = len(measures[_SHOWN:]) + (len(newest.undeclared()) if newest.declared else 0)
    if more:
        yield from _paragraph("more numbers", f"{more} in {newest.path}")
    if any(folder.glob("*.svg")):
        yield from _paragraph("figures", f"{folder}/")


def _verdicts(found: Evaluation, measures: Sequence[Measure]) -> Iterator[str]:
    """Yield which metrics differ from their floor or ideal, which do not, and what their names mean."""
    marks = [(each.title, mark(found, each)) for each in measures]
    differ = [f"{title} ({judged.text})" for title, judged in marks if judged.level == DIFFERS]
    if differ:
        yield from _paragraph(f"{WORDS[DIFFERS]} {SIGNS[DIFFERS]}", "; ".join(differ))
    same = [title for title, judged in marks if judged.level == SAME]
    if same:
        text = f"{WORDS[SAME]} with {sample_of(found)}: {'; '.join(same)}"
        yield from _paragraph(f"compared {SIGNS[SAME]}", text)
    if any(judged.sign for _, judged in marks):
        for place, text in enumerate(terms_of(found)):
            yield from _paragraph("" if place else "meaning", text)


def _numbers(found: Evaluation, measures: Sequence[Measure]) -> Iterator[str]:
    """Yield a table: under each metric's title which direction is better, beside it the numbers."""
    present = [column for column in COLUMNS if column in found.columns]
    cells = {column: [found.text(column, measure.name) for measure in measures] for column in present}
    widths = {column: max(map(len, (COLUMNS[column], *cells[column]))) for column in present}
    room = max(_INNER - sum(width + 2 for width in widths.values()), _TITLE)
    titles: list[str] = []
    rows: dict[str, list[str]] = {column: [] for column in present}
    for index, measure in enumerate(measures):
        lines = textwrap.wrap(measure.title, room) or [measure.name]
        lines += textwrap.wrap(f"({measure.direction})", room) if measure.direction else []
        titles += lines
        for column in present:
            rows[column] += [cells[column][index], *[""] * (len(lines) - 1)]
    columns = [Column(COLUMNS[column], rows[column], drop=_DROP[column]) for column in present]
    yield from table([Column("metric", titles), *columns], _INNER)


# `crpipe summary --json`: the numbers of the summary as plain values, for programs.


Tree = dict[str, Any]


def summary_json(campaign: Campaign) -> str:
    """Return the summary as JSON; raise DataError when a file that it reads is damaged."""
    status, newest = collect(campaign), next(evaluations(campaign), None)
    ledgers, links = status.ledgers, status.bulk()
    report = campaign.paths.run_dir() / "report.html"
    return json_text(
        {
            "run": campaign.paths.run,
            "item": status.item,
            "events": asdict(ledgers.events),
            "items": asdict(ledgers.items),
            "weights": dict(ledgers.weights),
            "balanced": ledgers.events.balanced() and ledgers.items.balanced() and not ledgers.unbalanced,
            "ledgers": {"count": ledgers.count, "unbalanced": list(ledgers.unbalanced)},
            "ranges": len(status.chain()),
            "links": {"finished": status.finished(), "count": len(links)},
            "consolidated_outliers": _consolidated(campaign),
            "quarantined": [
                {"range": name, "file": path, "reason": reason}
                for name, path, reason in quarantined_files(campaign)
            ],
            "checkpoint": _checkpoint_json(campaign),
            "report": str(report) if is_present(report) else None,
            "evaluation": None if newest is None else _evaluation_json(newest),
        }
    )


def _consolidated(campaign: Campaign) -> int | None:
    manifest = ShardManifest.read_if_any(campaign.paths.outlier_manifest(CONSOLIDATED))
    return None if manifest is None else manifest.totals()[0]


def _checkpoint_json(campaign: Campaign) -> Tree | None:
    receipt = last_receipt(campaign)
    if receipt is None:
        return None
    store, best = campaign.paths.store(receipt.range), _best_of(campaign, receipt)
    kept: Tree | None = None
    if best is not None:
        kept = {"path": str(store / best.checkpoint), "metric": best.metric}
        kept |= {"value": best.value, "step": best.step}
    return {
        "link": receipt.range,
        "path": str(store / receipt.checkpoint),
        "step": receipt.step,
        "events": receipt.events,
        "items": receipt.items,
        "skipped": receipt.skipped,
        "stopped": receipt.stopped or "",
        "best": kept,
    }


def _evaluation_json(found: Evaluation) -> Tree:
    return {
        "link": found.name,
        "path": str(found.path),
        "part": found.part,
        "events": found.events,
        "groups": found.groups,
        "metrics": [_metric(found, measure) for measure in found.measures()],
    }


def _metric(found: Evaluation, measure: Measure) -> Tree:
    """Describe one number: what it is, and its value and error for the model and what it is compared with."""
    columns: Tree = {}
    for key, name in zip(COLUMNS, ("model", "simulated_again", "baseline"), strict=True):
        value = found.number(key, measure.name)
        columns[name] = None if value is None else {"value": value[0], "error": value[1]}
    about = {"name": measure.name, "title": measure.title, "better": measure.better, "ideal": measure.ideal}
    return {**about, "needs": measure.need, **columns}
