"""`crpipe summary --json`: the numbers of the summary as plain values, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present
from crpipe.core.files import read_json_if_any
from crpipe.core.paths import CONSOLIDATED
from crpipe.report.evaluations import COLUMNS, evaluations
from crpipe.report.status.campaign_state import collect
from crpipe.report.summary import last_receipt, quarantined_files
from crpipe.report.text import json_text

if TYPE_CHECKING:
    from crpipe.report.campaign_view import CampaignView
    from crpipe.report.evaluations import Evaluation, Measure

Tree = dict[str, Any]


def summary_json(view: CampaignView) -> str:
    """Give the summary as JSON; raise DataError when a file that it reads is damaged."""
    status, newest = collect(view), next(evaluations(view), None)
    ledgers, links = status.ledgers, status.bulk()
    report = view.paths.run_dir() / "report.html"
    return json_text(
        {
            "run": view.run,
            "item": status.item,
            "events": asdict(ledgers.events),
            "items": asdict(ledgers.items),
            "weights": dict(ledgers.weights),
            "balanced": ledgers.events.balanced() and ledgers.items.balanced() and not ledgers.unbalanced,
            "ledgers": {"count": ledgers.count, "unbalanced": list(ledgers.unbalanced)},
            "ranges": len(status.chain()),
            "links": {"finished": status.finished(), "count": len(links)},
            "consolidated_outliers": _consolidated(view),
            "quarantined": [
                {"range": name, "file": path, "reason": reason}
                for name, path, reason in quarantined_files(view)
            ],
            "checkpoint": _checkpoint(view),
            "report": str(report) if is_present(report) else None,
            "evaluation": None if newest is None else _evaluation(newest),
        }
    )


def _consolidated(view: CampaignView) -> int | None:
    manifest = read_json_if_any(view.paths.outlier_manifest(CONSOLIDATED))
    return None if manifest is None else sum(shard["events"] for shard in manifest["shards"])


def _checkpoint(view: CampaignView) -> Tree | None:
    receipt = last_receipt(view)
    if receipt is None:
        return None
    store = view.paths.store(receipt["range"])
    best = read_json_if_any(view.paths.best_receipt(receipt["range"]))
    if best is not None and best["key"] == receipt["key"]:
        known = {name: best[name] for name in ("metric", "value", "step")}
        kept: Tree | None = {"path": str(store / best["checkpoint"]), **known}
    else:
        kept = None
    return {
        "link": receipt["range"],
        "path": str(store / receipt["checkpoint"]),
        **{name: receipt[name] for name in ("step", "events", "items", "skipped")},
        "stopped": receipt.get("stopped", ""),
        "best": kept,
    }


def _evaluation(found: Evaluation) -> Tree:
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
