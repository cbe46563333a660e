"""How good predicted energies, places, times and angles are, in numbers and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.xec.scoring import curve, metrics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from crpipe.events.batch import Events
    from crpipe.workloads.xec.layout import Truth


def score(
    truth: Events, prediction: Mapping[str, Any], folder: Path, tasks: Collection[Truth]
) -> dict[str, float]:
    """Compare predictions with the truth; plot figures into ``folder``.

    There are figures where the prediction has a baseline to compare with, so none for the baseline itself.
    """
    if "baseline_u_cm" in prediction:
        from crpipe.workloads.xec.scoring import plots  # noqa: PLC0415 - training must not load matplotlib

        plots.draw_all(truth.columns, prediction, folder, tasks)
    found = metrics.measure(truth.columns, prediction, tasks)
    if "energy" in tasks:
        found |= curve.measure(truth.columns, prediction)
    return found
