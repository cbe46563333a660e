"""How good predicted directions are, in numbers and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.direction.scoring import metrics

# ruff: noqa: PLC0415 - numbers alone need no matplotlib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.events.batch import Events


def score(truth: Events, prediction: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Compare predicted directions with the true ones; plot figures into ``folder``.

    There are figures where the prediction has a line fit to compare with, so none for the line fit itself.
    """
    if "line_fit_zenith" in prediction:
        from crpipe.workloads.direction.scoring.plots import draw_all

        draw_all(truth, prediction, folder)
    return metrics.measure(truth.columns, prediction)
