"""How well hidden sensors are found again, beside averages of the sensors around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.metric import Metric
from crpipe.workloads.xec.scoring.hidden import TITLES, errors, hidden_sensors
from crpipe.workloads.xec.sensors import FACES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.events.batch import Events

METRICS = tuple(
    metric
    for name, title in TITLES.items()
    for metric in (
        Metric(f"{name}_mae", f"{title}: mean absolute error of hidden sensors", "photons", ideal=0.0),
        Metric(f"{name}_bias", f"{title}: mean error", "photons", better="near", ideal=0.0),
        Metric(f"{name}_rms", f"{title}: root of the mean squared error", "photons", ideal=0.0),
    )
)


def score(_truth: Events, prediction: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Compare what was found with what the hidden sensors saw; plot a figure into ``folder``.

    prediction: list columns [N] as ``Inpainter.predict`` gives them. Numbers of all hidden sensors, and of
    each face (``photons_mae_inner``), each with its error.
    """
    hidden = hidden_sensors(prediction)
    if not len(hidden.true):
        return {}
    from crpipe.workloads.xec.scoring import inpainted_plots  # noqa: PLC0415 - training must not load matplotlib

    inpainted_plots.draw(hidden, folder / "hidden_sensors.svg")
    found: dict[str, float] = {}
    for method in hidden.photons:
        whole, by_face = (
            errors(hidden, method, group, count)
            for group, count in ((np.zeros_like(hidden.face), 1), (hidden.face, len(FACES)))
        )
        for measured, endings in ((whole, ("",)), (by_face, [f"_{face}" for face in FACES])):
            for place, ending in enumerate(endings):
                for kind in ("mae", "bias", "rms"):
                    found[f"{method}_{kind}{ending}"] = float(getattr(measured, kind)[place])
                    found[f"{method}_{kind}{ending}_error"] = float(measured.error[kind][place])
    return {name: value for name, value in found.items() if np.isfinite(value)}
