"""Events that a workload chooses after an evaluation: read a second time, with their items, and shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.errors import PluginError
from crpipe.core.files import disk_errors
from crpipe.events.batch import Events, concatenate
from crpipe.train.workload import Columns, ShowsEvents, WorkloadCall, weighed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.inference.checkpoints import LoadedModel

MOST_SHOWN = 1000  # they are in memory together, with all their items


def show_events(
    trained: LoadedModel,
    compared: tuple[Events, Events | Columns],
    sample: Iterable[Events],
    weight: str,
    folder: Path,
    known: Mapping[str, float],
) -> dict[str, float]:
    """Show the events that the workload chooses; return the numbers that it gives, if finite.

    compared: truth and prediction of all events, as ``score`` got them. sample: the same events once more,
    block by block, with their items; read as far as the last chosen one. known: the numbers of ``score``.
    Raise PluginError for a choice of other than at most MOST_SHOWN places, and for a number of a known name.
    """
    workload, (truth, prediction) = trained.workload, compared
    assert isinstance(workload, ShowsEvents)
    with WorkloadCall(workload, "shown", truth):
        chosen = _checked(workload.shown(truth, prediction), len(truth), f"{trained.name}.shown")
    if not len(chosen):
        return {}
    events = weighed(_read(sample, chosen), weight)
    trained.model.eval()
    with WorkloadCall(workload, "show", events), disk_errors(folder), torch.no_grad():
        scores = workload.show(trained.model, events, _taken(prediction, chosen), folder)
        numbers = {str(name): float(value) for name, value in scores.items()}
    twice = sorted(numbers.keys() & known.keys())
    if twice:
        raise PluginError(f"{trained.name}.show: score gives a number {twice[0]} too; give it another name")
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _checked(places: Any, count: int, method: str) -> NDArray[np.int64]:
    """Return the chosen places as int64; raise PluginError for anything else."""
    chosen = np.asarray(places)
    if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
        raise PluginError(
            f"{method}: expected places of events as a list of whole numbers, found {chosen.dtype} of the "
            f"shape {list(chosen.shape)}; np.flatnonzero turns a mask into places"
        )
    if len(chosen) > MOST_SHOWN:
        raise PluginError(f"{method}: {len(chosen)} events are chosen; choose at most {MOST_SHOWN}")
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < count:
        raise PluginError(
            f"{method}: the places {chosen.min()} to {chosen.max()} are not all among the {count} events, "
            f"which are 0 to {count - 1}"
        )
    return chosen.astype(np.int64)


def _taken(prediction: Events | Columns, chosen: NDArray[np.int64]) -> Events | Columns:
    if isinstance(prediction, Events):
        return prediction.take(chosen)
    return {name: values[chosen] for name, values in prediction.items()}


def _read(sample: Iterable[Events], chosen: NDArray[np.int64]) -> Events:
    """Keep the chosen events of a stream of blocks, and put them into the order in which they were chosen."""
    places, order = np.unique(chosen, return_inverse=True)
    kept: list[Events] = []
    first = 0
    for block in sample:
        low, high = np.searchsorted(places, [first, first + len(block)])
        if low < high:
            kept.append(block.take(places[low:high] - first))
        first += len(block)
        if high == len(places):
            break
    return concatenate(kept).take(order)
