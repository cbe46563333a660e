"""Validates a training state where it is due, keeps the best checkpoint, and ends a link that stays worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.core.files import read_json_if_any
from crpipe.train.checkpoints import load, verified
from crpipe.train.validation.best import BestKeeper, BestValue, write_best
from crpipe.train.validation.measure import PREFIX, Validation, finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.train.inputs import Inputs
    from crpipe.train.step import Stepper


class Judge:
    """The validations of one link; without a sample it measures nothing.

    stopped: why the link ends early; empty while it goes on.
    """

    def __init__(self, inputs: Inputs, stepper: Stepper) -> None:
        job, sample = inputs.job, inputs.sample
        self._job, self._store, self._say = job, inputs.store, inputs.progress.say
        self._state, self._world = stepper.state, stepper.world
        weight = inputs.loader.layout.weight
        self._validation = None if sample is None else Validation(sample, job.seed, stepper, weight)
        self._best = BestKeeper(inputs.best, job.train.stop_after) if inputs.best else None
        self._measured = -1  # step of the link
        self.stopped = ""

    def due(self, *, at_end: bool) -> bool:
        """Return whether to measure now; at the link's end unless that was just done."""
        step = self._state.counters.range_step
        if self._validation is None or step == self._measured:
            return False
        return at_end or step % self._job.train.validate_steps == 0

    def measure(self) -> dict[str, float]:
        """Measure, compare, and give the finite numbers; the state has counted all its steps."""
        if self._validation is None:
            return {}
        counters = self._state.counters
        self._measured = counters.range_step
        found = self._validation.measure()
        values = finite(found)
        if len(values) < len(found):
            names = ", ".join(sorted(found.keys() - values.keys()))
            self._say(f"warning: step {counters.step}: not finite: {names}")
        if self._best:
            if self._best.judge(values, counters.step, counters.range_step):
                self._keep(self._best, values)
            self.stopped = self._best.stopped()
        return values

    def _keep(self, best: BestKeeper, values: dict[str, float]) -> None:
        """Save the best checkpoint, then its receipt, then drop what both replace."""
        if not self._world.leads:
            return
        name = best.metric.name
        state = {
            **self._state.state(self._job.keys),
            "metrics": values,
            "range": self._job.link.name,
            "best": {"metric": name, "value": values[PREFIX + name]},
        }
        saved = self._store.save_best(state, self._state.counters.range_step)
        write_best(self._job.files.best, self._job.link.name, self._store, best.saved(saved))
        self._store.drop_replaced(saved.path.name)

    def inherit(self) -> None:
        """Take over the best checkpoint of the link before: a link without events changes nothing."""
        best, files = self._best, self._job.files
        row = read_json_if_any(files.parent_best) if files.parent_best else None
        if best is None or row is None or row["metric"] != best.metric.name or files.parent_store is None:
            return
        best.found = BestValue(row["metric"], row["value"], row["step"], 0)
        if self._world.leads:
            state = load(verified(files.parent_store / row["checkpoint"]).path)
            counters = {**state["counters"], "range_step": 0}  # the name says so, too
            saved = self._store.save_best({**state, "range": self._job.link.name, "counters": counters}, 0)
            write_best(files.best, self._job.link.name, self._store, best.saved(saved))

    def finish(self) -> None:
        """Leave the receipt and the files of the best checkpoint as this job found them, on the leading rank.

        Later files are of an interrupted job under other keys of validation.
        """
        if self._best is None:
            return
        found = self._best.found
        if found is None:
            self._job.files.best.unlink(missing_ok=True)
        else:
            write_best(self._job.files.best, self._job.link.name, self._store, found)
        self._store.drop_best_after(found.range_step if found else -1)

    def state(self) -> dict[str, Any] | None:
        """Give what a snapshot needs."""
        return self._best.state() if self._best else None

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Load what a snapshot held."""
        if self._best and not self._best.restore(state, self._store.folder):
            self._say(f"train.keep_best: {self._best.metric.name} is compared from this step on")
