"""The numbers of an evaluation as a Markdown table, with the titles that the workload declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from crpipe.events.metric import Metric

ERROR = "_error"  # NAME_error is the error of NAME
_TITLES = {"values": "model", "baseline": "baseline", "again": "simulated again"}


def score_table(metrics: Iterable[Metric], scores: Mapping[str, Mapping[str, float]]) -> str:
    """Lay out the values beside those of the baseline and of a second simulation, where there are any.

    Declared metrics come first, in their order; the others follow under their own names.
    """
    kinds = [kind for kind in _TITLES if kind in scores]
    lines = [
        f"| metric | {' | '.join(_TITLES[kind] for kind in kinds)} |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for name, title in _rows(metrics, scores["values"]):
        lines.append(f"| {title} | {' | '.join(_cell(scores[kind], name) for kind in kinds)} |")
    return "\n".join(lines)


def _rows(metrics: Iterable[Metric], values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    declared = {metric.name: metric for metric in metrics}
    for name, metric in declared.items():
        if name in values:
            yield name, f"{metric.title}, in {metric.unit}" if metric.unit else metric.title
    for name in values:
        if name not in declared and not name.endswith(ERROR):
            yield name, name


def _cell(values: Mapping[str, float], name: str) -> str:
    if name not in values:
        return ""
    error = values.get(name + ERROR)
    return f"{values[name]:.4g}" + ("" if error is None else f" ± {error:.2g}")
