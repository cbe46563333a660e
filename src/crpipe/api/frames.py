"""Tables of a campaign as polars frames: ranges, links, metrics and evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from crpipe.core.destinations import DESTINATIONS
from crpipe.core.files import read_json_if_any
from crpipe.core.paths import OUTLIERS
from crpipe.events.ledger_file import read_sums_if_any
from crpipe.report.evaluations import read_evaluation
from crpipe.report.series import chain_rows
from crpipe.report.status.campaign_state import collect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.report.campaign_view import CampaignView
    from crpipe.report.evaluations import Evaluation

Row = dict[str, Any]
_FLOOR = "again"  # the numbers of a second simulation
RANGES: Any = {
    "range": pl.String,
    "state": pl.String,
    "files": pl.Int64,
    "quarantined": pl.Int64,
    "events": pl.Int64,
    "items": pl.Int64,
    **dict.fromkeys(DESTINATIONS, pl.Int64),
}
LINKS: Any = {
    "link": pl.String,
    "state": pl.String,
    "round": pl.Int64,
    "ranges": pl.List(pl.String),
    "step": pl.Int64,
    "events": pl.Int64,
    "items": pl.Int64,
    "skipped": pl.Int64,
    "stopped": pl.String,
    "checkpoint": pl.String,
    "best_step": pl.Int64,
    "best_metric": pl.String,
    "best_value": pl.Float64,
}
EVALUATIONS: Any = {
    "link": pl.String,
    "step": pl.Int64,
    "part": pl.String,
    "events": pl.Int64,
    "groups": pl.Int64,
    "metric": pl.String,
    "title": pl.String,
    "declared": pl.Boolean,
    "better": pl.String,
    "ideal": pl.Float64,
    **dict.fromkeys(("value", "error", "floor", "floor_error", "baseline", "baseline_error"), pl.Float64),
}


def ranges_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each range, in order; null where nothing is known yet."""
    rows: list[Row] = []
    for status in collect(view).ranges:
        if status.name == OUTLIERS:
            continue
        row: Row = {"range": status.name, "state": str(status.state), "files": status.files}
        row["quarantined"] = status.quarantined
        ledger = read_sums_if_any(view.paths.ledger(status.name))
        if ledger is not None:
            row |= {"events": ledger["events"]["listed"], "items": ledger["items"]["listed"]}
            row |= {name: ledger["events"][name] for name in DESTINATIONS}
        rows.append(row)
    return pl.DataFrame(rows, schema=RANGES)


def links_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each link, in the order of the chain."""
    rows: list[Row] = []
    for status in collect(view).links:
        row: Row = {"link": status.name, "state": str(status.state), "round": status.round}
        row |= {"ranges": list(status.ranges), "step": status.step, "stopped": status.stopped}
        receipt = read_json_if_any(view.paths.receipt(status.name))
        if receipt is not None:
            row |= {name: receipt[name] for name in ("step", "events", "items", "skipped")}
            row["checkpoint"] = str(view.paths.store(status.name) / receipt["checkpoint"])
        best = read_json_if_any(view.paths.best_receipt(status.name))
        if best is not None:
            row |= {f"best_{name}": best[name] for name in ("step", "metric", "value")}
        rows.append(row)
    return pl.DataFrame(rows, schema=LINKS)


def metrics_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each logged step of the chain; ``range`` of metrics.jsonl is called ``link``."""
    rows = chain_rows(view)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "range":
            columns["link"] = pl.Series(values, dtype=pl.String)
        else:
            whole = all(isinstance(value, int) for value in values if value is not None)
            kind: Any = int if whole else float
            numbers = [None if value is None else kind(value) for value in values]
            columns[name] = pl.Series(numbers, dtype=pl.Int64 if whole else pl.Float64)
    return pl.DataFrame(columns or {"step": pl.Series([], dtype=pl.Int64)})


def evaluations_frame(view: CampaignView) -> pl.DataFrame:
    """Give one row for each number of each evaluated checkpoint, in the order of their steps."""
    found = [row for folder in _evaluated(view) for row in _numbers(view, folder)]
    return pl.DataFrame(found, schema=EVALUATIONS).sort("step", maintain_order=True)


def _evaluated(view: CampaignView) -> list[Path]:
    return sorted(path.parent for path in view.paths.evaluation("x").parent.glob("*/metrics.json"))


def _numbers(view: CampaignView, folder: Path) -> Iterator[Row]:
    path = folder / "metrics.json"
    tree = read_json_if_any(path) or {}
    names = view.chain.names
    place = names.index(folder.name) + 1 if folder.name in names else 0
    evaluation = read_evaluation(place, folder.name, path, tree)
    about = {"link": folder.name, "step": tree.get("step"), "part": evaluation.part}
    about |= {"events": evaluation.events, "groups": evaluation.groups}
    declared = {measure.name for measure in evaluation.declared}
    for measure in [*evaluation.declared, *evaluation.undeclared()]:
        row = {"metric": measure.name, "title": measure.title, "declared": measure.name in declared}
        yield (
            about
            | row
            | {"better": measure.better, "ideal": measure.ideal}
            | _values(evaluation, measure.name)
        )


def _values(evaluation: Evaluation, name: str) -> Row:
    row: Row = {}
    columns = {"value": "values", "floor": _FLOOR, "baseline": "baseline"}
    for column, key in columns.items():
        number = evaluation.number(key, name)
        if number is not None:
            row[column], row["error" if column == "value" else f"{column}_error"] = number
    return row
