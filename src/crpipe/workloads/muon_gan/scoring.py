"""How good generated bundles are, in numbers and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.data.batch import Events


def score(truth: Events, prediction: Events, folder: Path) -> dict[str, float]:
    """Compare; write figures into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"multiplicity_ratio": float(prediction.multiplicity.sum() / max(truth.multiplicity.sum(), 1))}
