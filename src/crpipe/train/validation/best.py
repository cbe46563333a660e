"""The best checkpoint of a link by one validation metric, and when to stop waiting for a better one."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError
from crpipe.train.checkpoints import write_receipt
from crpipe.train.validation.measure import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.events.metric import Metric
    from crpipe.train.checkpoints import Saved, Store


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value so far and the checkpoint that had it.

    step: of the whole chain; range_step: of the link, as in the names of snapshots.
    """

    metric: str
    value: float
    step: int
    range_step: int
    checkpoint: str = ""
    sha256: str = ""


class BestKeeper:
    """Compares validations; what it decides depends on their values alone, so all ranks decide alike."""

    def __init__(self, metric: Metric, stop_after: int) -> None:
        self.metric = metric
        self.found: BestValue | None = None
        self.without = 0  # validations in a row without a better value
        self._stop_after = stop_after

    def judge(self, values: Mapping[str, float], step: int, range_step: int) -> bool:
        """Take one validation; return whether it is the best so far. What is not finite never is."""
        value = values.get(PREFIX + self.metric.name, math.nan)
        better = math.isfinite(value) and (
            self.found is None or self._cost(value) < self._cost(self.found.value)
        )
        if better:
            self.found = BestValue(self.metric.name, value, step, range_step)
        self.without = 0 if better else self.without + 1
        return better

    def stopped(self) -> str:
        """Give the reason to end the link; empty while training goes on."""
        if not self._stop_after or self.without < self._stop_after:
            return ""
        best = f"best {self.found.value:.6g} at step {self.found.step}" if self.found else "never finite"
        return f"no better {PREFIX}{self.metric.name} for {self.without} validations; {best}"

    def state(self) -> dict[str, Any]:
        """Give what a snapshot needs."""
        found = asdict(self.found) if self.found else None
        return {"metric": self.metric.name, "without": self.without, "found": found}

    def restore(self, state: Mapping[str, Any] | None, folder: Path) -> bool:
        """Load what a snapshot held; False when it is about another metric, or about none.

        Raise CheckpointError when the best checkpoint is gone.
        """
        if state is None or state["metric"] != self.metric.name:
            return False
        self.without = state["without"]
        self.found = BestValue(**state["found"]) if state["found"] else None
        if self.found and not is_present(folder / self.found.checkpoint):
            raise CheckpointError(
                f"{folder / self.found.checkpoint}: missing, the best checkpoint of train.keep_best; restore "
                "it, or move the snapshots of this link away to train it from its beginning"
            )
        return True

    def saved(self, saved: Saved) -> BestValue:
        """Take note of the checkpoint of the value just found."""
        if self.found is None:
            raise ValueError("nothing was found yet")
        found = {**asdict(self.found), "checkpoint": saved.path.name, "sha256": saved.sha256}
        self.found = BestValue(**found)
        return self.found

    def _cost(self, value: float) -> float:
        if self.metric.better == "near":
            return abs(value - (self.metric.ideal or 0.0))
        return -value if self.metric.better == "high" else value


def write_best(path: Path, link: str, store: Store, found: BestValue) -> None:
    """Write the receipt of a best checkpoint."""
    row = {
        "range": link,
        "key": store.key,
        "checkpoint": found.checkpoint,
        "sha256": found.sha256,
        "step": found.step,
        "metric": found.metric,
        "value": found.value,
    }
    write_receipt(path, row)
