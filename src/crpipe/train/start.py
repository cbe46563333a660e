"""The first link of a run that starts from a checkpoint of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.files import write_json
from crpipe.train.checkpoints import load, refuse_not_finite
from crpipe.train.pretrained import has_seen
from crpipe.train.records.numerics import judge, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.train.checkpoints import Saved
    from crpipe.train.link import TrainJob
    from crpipe.train.records.numerics import Numerics
    from crpipe.train.state import TrainState


def begin_from(
    source: Saved,
    state: TrainState,
    job: TrainJob,
    here: Numerics,
    say: Callable[[str], None],
    *,
    records: bool,
) -> None:
    """Start the first link from weights of another training, or go on after a link of another run.

    here: how this process computes.
    records: whether to write which weights were loaded (on the leading rank).
    """
    train, saved = job.train, load(source.path)
    warning = has_seen(source, saved["keys"])
    if warning:
        say(f"warning: {warning}")
    if train.start_after:
        judge(recorded(saved), here, str(source.path), train.numerics, say)
        say(state.continue_from(saved, train.on_optimizer_change))
        _check_weights(source, state)
        say(f"link {job.link.name}: goes on after {train.start_after}, from {source.path}")
        return
    match = state.init_from(saved, train.init_map)
    _check_weights(source, state)
    say(match.describe())
    if not train.init_map:
        say(state.load_optimizers(saved, train.on_optimizer_change))
    if records:
        write_json(job.files.loaded, match.record(source, warning))


def _check_weights(source: Saved, state: TrainState) -> None:
    """Raise CheckpointError when what was loaded is not finite."""
    for weights in (dict(state.model.named_parameters()), state.average):
        refuse_not_finite(source.path, weights)
