"""How good the checkpoints are: the numbers of their evaluations, link after link of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.core.paths import OUTLIERS
from crpipe.report.status.range_state import optional

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.config.loading import Config

FLOOR = "floor/"  # the same numbers for a second simulation of the same primaries
ERROR = "_error"  # after a key: its standard error
# What is shown of metrics.json, and how it is called.
METRICS = {
    "w1_log_energy": "W1 of log10(energy / GeV)",
    "w1_radius_m": "W1 of radius, in m",
    "auc_event": "AUC of events (0.5 is perfect)",
    "auc_multiplicity": "AUC of multiplicities",
    "auc_full": "AUC of events with own multiplicities",
    "auc_muon": "AUC of single muons",
}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The numbers of one checkpoint: the ``place``-th link (from 1) of the chain."""

    place: int
    path: Path
    numbers: dict[str, Any]


def evaluations(config: Config) -> Iterator[Evaluation]:
    """Read the evaluations that there are, newest link first."""
    links = [*map(str, config.all_ranges()), OUTLIERS]
    for place in range(len(links), 0, -1):
        path = config.paths().evaluation(links[place - 1]) / "metrics.json"
        numbers = optional(path)
        if numbers is not None:
            yield Evaluation(place, path, numbers)
