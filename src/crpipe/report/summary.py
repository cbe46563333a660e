"""`crpipe summary` as box and JSON: where every event went, and how good the final checkpoint is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from crpipe.campaign.ledger import Counts, Ledger
from crpipe.campaign.records import BestReceipt, Receipt
from crpipe.core.causes import is_present
from crpipe.core.paths import CONSOLIDATED, LARGE_ROLES
from crpipe.core.text import Column, counted, json_text, measured, number, shorten, table
from crpipe.events.layout import not_enough
from crpipe.events.shard_records import ShardManifest
from crpipe.report.evaluations import COLUMNS, Evaluation, MetricRow, evaluations, terms_of
from crpipe.report.state import CampaignState, Ledgers, destinations_of
from crpipe.report.status import empty_line, sums_json, weight_line
from crpipe.report.verdicts import Verdict, line, overall, rounded, verdicts
from crpipe.report.work_state import State
from crpipe.statistics.verdict import AGREES, CANNOT_TELL, SIGNS, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign

WIDTH = 80
LABEL = 14
_INNER = WIDTH - 4
_NAMED = 10  # quarantined files that are shown
_SHOWN = 20  # numbers of an evaluation that are shown
_TITLE = 20  # least width of a metric's title, in characters
_DROP = {
    "values": 0,
    "again": 2,
    "halves": 2,
    "baseline": 1,
}  # which column is dropped first where numbers are long
_GOOD, _BAD = "✓", "✗"
_TITLES = {"train": "bulk (train)"}


def render_summary(state: CampaignState) -> str:
    """Return the box, 80 columns wide; raise DataError when a file that it reads is damaged."""
    newest = next(evaluations(state.campaign), None)
    sections = [
        (f"events and {shorten(state.item, _INNER // 2)}", list(_sums(state.ledgers, state.item))),
        ("campaign", list(_campaign(state))),
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


def _sums(ledgers: Ledgers, item: str) -> Iterator[str]:
    kinds = {"events": ledgers.events, shorten(item, LABEL - 1): ledgers.items}
    columns = [Column("", list(kinds))]
    for name in ("listed", *destinations_of(ledgers.events)):
        cells = [number(counts.of(name)) for counts in kinds.values()]
        columns.append(Column(_TITLES.get(name, name), cells, right=True))
    columns.append(Column("sum", [_check(counts.is_balanced()) for counts in kinds.values()], right=True))
    if sum(column.width() + 2 for column in columns) <= _INNER:
        yield from table(columns, _INNER)
    else:
        for kind, counts in kinds.items():
            yield from _equation(kind, counts)
    if ledgers.empty:
        yield from _paragraph("empty", empty_line(ledgers.empty, ledgers.events.listed, item))
    if ledgers.weights:
        yield from _paragraph("weights", weight_line(ledgers.weights))


def _equation(kind: str, counts: Counts) -> Iterator[str]:
    """Write large sums one below the other."""
    yield f"{kind:<{LABEL}}{number(counts.listed):>22}  listed  {_check(counts.is_balanced())}"
    for name in destinations_of(counts):
        yield f"{'':<{LABEL}}{number(counts.of(name)):>22}  {_TITLES.get(name, name)}"


def _check(good: bool) -> str:
    return _GOOD if good else _BAD


def _campaign(state: CampaignState) -> Iterator[str]:
    campaign, ledgers = state.campaign, state.ledgers
    unbalanced = f", not {', '.join(ledgers.unbalanced)}" if ledgers.unbalanced else ""
    balance = f"{ledgers.balance()} balance{unbalanced}"
    yield from _paragraph("ledgers", f"{balance}; the campaign has {counted(len(state.chain()), 'range')}")
    if campaign.has_outliers:
        yield from _paragraph("outliers", _outliers(campaign, sum(map(ledgers.events.of, LARGE_ROLES))))
    for each in state.given_up:
        yield from _paragraph("skipped", each.describe())
    yield from _quarantined(state)
    yield from _paragraph("trained", state.trained_of())
    yield from _checkpoint(state)
    report = campaign.paths.report()
    yield from _paragraph("report", str(report) if is_present(report) else f"not written yet ({report})")


def _outliers(campaign: Campaign, events: int) -> str:
    merged = _consolidated(campaign)
    if merged is None:
        return f"{number(events)} in the ranges, not consolidated yet"
    sign = "=" if merged == events else "≠"
    return f"consolidated {number(merged)} {sign} {number(events)} in the ranges  {_check(merged == events)}"


def _quarantined(state: CampaignState) -> Iterator[str]:
    yield from _paragraph("quarantined", counted(state.ledgers.quarantined, "file"))
    named = [f"{name}/{path}: {reason}" for name, path, reason in quarantined_files(state)]
    for text in named[:_NAMED]:
        yield from _paragraph("", text)
    if len(named) > _NAMED:
        yield from _paragraph("", f"… and {len(named) - _NAMED} more, see the ledgers")


def quarantined_files(state: CampaignState) -> Iterator[tuple[str, str, str]]:
    """Yield range, path and reason of each quarantined file."""
    for item in state.ranges:
        if item.state is not State.SKIPPED and item.ledger is not None and item.ledger.quarantined:
            for file in Ledger.read(state.campaign.paths.ledger(item.name)).files:
                if file.state == "quarantined":
                    yield item.name, file.path, file.reason


def _checkpoint(state: CampaignState) -> Iterator[str]:
    receipt = state.receipt()
    if receipt is None:
        yield from _paragraph("checkpoint", "none yet")
        return
    path = state.campaign.paths.store(receipt.range) / receipt.checkpoint
    yield from _paragraph("checkpoint", f"{path.parent}/")
    yield from _paragraph("", path.name)
    seen = f"{counted(receipt.events, 'event')}, {number(receipt.items)} {state.item}"
    skipped = f", {counted(receipt.skipped, 'step')} skipped" if receipt.skipped else ""
    yield from _paragraph("steps", f"{number(receipt.step)}: {seen}{skipped}")
    if receipt.stopped:
        yield from _paragraph("early stop", receipt.stopped)
    best = _best_of(state.campaign, receipt)
    if best is not None:
        yield from _paragraph("best", f"{best.metric} {measured(best.value)} at step {number(best.step)}")
        yield from _paragraph("", best.checkpoint)


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
    missing, (events, groups) = newest.too_few_for(), (newest.record.events, newest.record.groups)
    not_given = [row.title for row in newest.missing() if row not in missing]
    rows = [row for row in newest.shown() if row.numbers]
    if events == 0:
        yield "not enough: no event is held out, so there are no numbers"
    elif rows:
        yield from _paragraph("verdict", line(newest))
        judged = verdicts(newest)
        yield from _numbers(newest, rows[:_SHOWN], judged)
        yield from _verdicts(newest, rows[:_SHOWN], judged)
    elif not not_given:
        yield "no numbers: too few held-out events for any metric"
    if not_given and events != 0:
        yield from _paragraph("no number", f"score gave none that is finite: {', '.join(not_given)}")
    if missing and events and groups:
        needs = [(row.title, row.need) for row in missing]
        yield from _paragraph("not enough", not_enough(needs, events, groups))
    elif missing and events != 0:
        yield from _paragraph("not enough", f"for {', '.join(row.title for row in missing)}")
    folder = newest.path.parent
    more = len(rows[_SHOWN:]) + len(newest.others())
    if more:
        yield from _paragraph("more numbers", f"{more} in {newest.path}")
    if any(folder.glob("*.svg")):
        yield from _paragraph("figures", f"{folder}/")


def _verdicts(
    evaluation: Evaluation, rows: Sequence[MetricRow], judged: Mapping[str, Verdict]
) -> Iterator[str]:
    """Yield which metrics agree with their floor or ideal, which do not, and what their names mean."""
    for word in reversed(WORDS):
        those = [row for row in rows if judged[row.name].word == word]
        if those:
            text = "; ".join(_brief(row, judged[row.name]) for row in those)
            heading = f"{word}, with the groups needed" if word == CANNOT_TELL else word
            yield from _paragraph(SIGNS[word], f"{heading}: {text}")
    beside = [f"{row.title}: {text}" for row in rows if (text := judged[row.name].beside)]
    if beside:
        yield from _paragraph("baseline", "; ".join(beside))
    if any(one.word for one in judged.values()):
        for index, text in enumerate(terms_of(evaluation)):
            yield from _paragraph("" if index else "meaning", text)


def _brief(row: MetricRow, one: Verdict) -> str:
    """Write a number with what its word leaves open."""
    if one.word == AGREES:
        return f"{row.title} ({one.text})" if one.worst_bin else row.title
    if one.word == CANNOT_TELL:
        return row.title if one.needed is None else f"{row.title} ({rounded(one.needed)})"
    return f"{row.title} ({one.text})"


def _numbers(
    evaluation: Evaluation, rows: Sequence[MetricRow], judged: Mapping[str, Verdict]
) -> Iterator[str]:
    """Yield a table: under each metric's title which direction is better, beside it the numbers."""
    present = evaluation.columns
    cells = {column: [row.text(column) for row in rows] for column in present}
    widths = {column: max(map(len, (COLUMNS[column], *cells[column]))) for column in present}
    room = max(_INNER - 3 - sum(width + 2 for width in widths.values()), _TITLE)
    titles: list[str] = []
    signs: list[str] = []
    lines_of: dict[str, list[str]] = {column: [] for column in present}
    for index, row in enumerate(rows):
        lines = textwrap.wrap(row.title, room) or [row.name]
        lines += textwrap.wrap(f"({row.direction})", room) if row.direction else []
        titles += lines
        signs += [judged[row.name].sign if row.name in judged else "", *[""] * (len(lines) - 1)]
        for column in present:
            lines_of[column] += [cells[column][index], *[""] * (len(lines) - 1)]
    columns = [Column(COLUMNS[column], lines_of[column], drop=_DROP[column]) for column in present]
    yield from table([Column("metric", titles), Column("", signs), *columns], _INNER)


# `crpipe summary --json`: the numbers of the summary as plain values, for programs.


def summary_json(state: CampaignState) -> str:
    """Return the summary as JSON; raise DataError when a file that it reads is damaged."""
    newest, ledgers, report = (
        next(evaluations(state.campaign), None),
        state.ledgers,
        state.campaign.paths.report(),
    )
    return json_text(
        {
            "run": state.run,
            "item": state.item,
            "events": sums_json(ledgers.events),
            "items": sums_json(ledgers.items),
            "weights": dict(ledgers.weights),
            "balanced": ledgers.balanced(),
            "ledgers": {"count": ledgers.count, "unbalanced": list(ledgers.unbalanced)},
            "ranges": len(state.chain()),
            "links": {"finished": state.finished(), "count": len(state.bulk())},
            "given_up": [each.as_json() for each in state.given_up],
            "consolidated_outliers": _consolidated(state.campaign),
            "quarantined": [
                {"range": name, "file": path, "reason": reason}
                for name, path, reason in quarantined_files(state)
            ],
            "checkpoint": _checkpoint_json(state),
            "report": str(report) if is_present(report) else None,
            "evaluation": None if newest is None else _evaluation_json(newest),
        }
    )


def _consolidated(campaign: Campaign) -> int | None:
    manifest = ShardManifest.read_if_any(campaign.paths.outlier_manifest(CONSOLIDATED))
    return None if manifest is None else manifest.totals()[0]


def _checkpoint_json(state: CampaignState) -> dict[str, Any] | None:
    receipt = state.receipt()
    if receipt is None:
        return None
    store, best = state.campaign.paths.store(receipt.range), _best_of(state.campaign, receipt)
    return {
        "link": receipt.range,
        "path": str(store / receipt.checkpoint),
        **{name: getattr(receipt, name) for name in ("step", "events", "items", "skipped")},
        "stopped": receipt.stopped or "",
        "best": best
        and {
            "path": str(store / best.checkpoint),
            **{name: getattr(best, name) for name in ("metric", "value", "step")},
        },
    }


def _evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    judged = verdicts(evaluation)
    whole = overall(evaluation, judged)
    return {
        "link": evaluation.name,
        "path": str(evaluation.path),
        "part": evaluation.part,
        "events": evaluation.record.events,
        "groups": evaluation.record.groups,
        "verdict": whole.word,
        "text": whole.text,
        "beside_baseline": whole.beside,
        "metrics": [_metric_json(row, judged.get(row.name, Verdict())) for row in evaluation.shown()],
    }


def _metric_json(row: MetricRow, one: Verdict) -> dict[str, Any]:
    """Describe one number: what it is, its values and errors, and what is seen of it."""
    about = {name: getattr(row, name) for name in ("name", "title", "better", "ideal")}
    columns = {
        name: dict(zip(("value", "error"), row.numbers[column], strict=True))
        if column in row.numbers
        else None
        for column, name in zip(COLUMNS, ("model", "simulated_again", "halves", "baseline"), strict=True)
    }
    seen = {"verdict": one.word, "text": one.text, "beside_baseline": one.beside}
    return {**about, "needs": row.need, **columns, **seen}
