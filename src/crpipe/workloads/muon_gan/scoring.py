"""How good generated bundles are, in numbers and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.fields import BUNDLES
from crpipe.report import metrics, plots
from crpipe.report.sample import Sample

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.data.batch import Events


def score(truth: Events, prediction: Events, folder: Path) -> dict[str, float]:
    """Compare generated events with the real ones of the same conditions; draw figures into ``folder``."""
    real, generated = sample_of(truth), sample_of(prediction)
    judged = metrics.verdicts(real, generated)
    plots.draw_all(real, generated, judged, folder)
    return metrics.compare(real, generated, judged)


def sample_of(events: Events) -> Sample:
    """Take what the metrics look at; rows of one primary make one group."""
    ids = np.stack([events.columns[name] for name in BUNDLES.group], axis=1)
    _, group = np.unique(ids, axis=0, return_inverse=True)
    return Sample(events.columns, events.multiplicity, events.items, group)
