"""Warns of a loss that is too large, and ends the training before it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from crpipe.config.training import TrainSection


def check_band(
    values: Mapping[str, float],
    watched: Iterable[str],
    train: TrainSection,
    place: tuple[str, int],
    say: Callable[[str], None],
) -> None:
    """Compare the watched metrics with train.warn_loss and train.stop_loss; place: link and step.

    Raise DivergenceError beyond stop_loss.
    """
    link, step = place
    for name, value in ((name, values[name]) for name in watched if name in values):
        found = f"step {step}: {name} = {value:.4g} is beyond"
        if abs(value) > train.stop_loss:
            raise DivergenceError(
                f"link {link}, {found} ± {train.stop_loss:g} (train.stop_loss); the last good snapshot is "
                "kept; lower the learning rates in a new run from a checkpoint"
            )
        if abs(value) > train.warn_loss:
            say(f"warning: {found} ± {train.warn_loss:g} (train.warn_loss)")
