"""From events to batches and back: random windows of large bundles, and generation in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.events.batch import Events, cuts, offsets
from crpipe.loading.microbatch import rounded
from crpipe.workloads.muons import features
from crpipe.workloads.muons.features import context_of
from crpipe.workloads.muons.models.layers import padded_owner, padding, weights
from crpipe.workloads.muons.models.networks import Multiplicity, log_likelihood, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.train.workload import Batch

    MakeMuons = Callable[[Tensor], Callable[[Tensor], Tensor]]

_EVENTS_AT_ONCE = 4096
# Muons generated at once: what fits a CPU's cache is four times as fast there; a GPU wants large pieces.
_PIECE = {"cpu": 1 << 13}
_LARGE_PIECE = 1 << 18


def window_size(multiplicity: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Count the muons of each event that enter a training step; ``most`` 0: all."""
    wide = multiplicity.astype(np.int64)
    return np.minimum(wide, most) if most else wide


def collate(
    events: Events,
    index: NDArray[np.integer[Any]],
    *,
    most: int,
    kind: features.Kind,
    seed: tuple[int, ...],
    leading: int | None = None,
) -> Batch:
    """Turn the events at ``index`` into a batch; events without muons go last.

    conditions: [B, 4], multiplicity: [B] int64, the true one; B events, of which the first B' have muons.
    muons: [M, D] features, at most ``most`` of each event; event: [M] in 0..B'-1; kept: [B'] float32.
    Muons are exchangeable given the event, so a random window of a bundle with its full multiplicity as a
    condition has the same target as the whole bundle, in bounded memory. The events are in random order: the
    first few are a fair sample. order: [B] int64, where each of them is in ``index``.
    counts: [B] float32, 1, or 0 for padding (see layers.padding), which follows the events of its kind.
    leading: so many muons of a window are those of the highest energies. With it a batch has lead: [M]
    float32, 1 for these, else 0; and below: [M] float32, for the least of them, how many muons of its event,
    all of less energy, are not in the batch.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(index))
    order = order[np.argsort(events.multiplicity[index[order]] == 0, kind="stable")]
    index = index[order]
    multiplicity = events.multiplicity[index].astype(np.int64)
    filled = int(np.count_nonzero(multiplicity))
    kept = window_size(multiplicity[:filled], most)
    late = rng.random(filled) * (multiplicity[:filled] - kept + 1)
    first = events.offsets()[index[:filled]] + late.astype(np.int64)
    items = int(kept.sum())
    more = padding(filled, items)
    event = padded_owner(np.repeat(np.arange(filled), kept), filled)
    rows = np.zeros_like(event)  # of padding: any
    rows[:items] = np.arange(items) + np.repeat(first - offsets(kept)[:-1], kept)
    lead, below = np.zeros((2, len(rows)), np.float32)
    if leading:
        _choose_leading(events, index[:filled], leading, rows, lead, below, kept)
    counts = np.insert(np.ones(len(index), np.float32), filled, np.zeros(len(more)))
    if len(more):
        counts = np.append(counts, np.zeros(rounded(len(counts)) - len(counts), np.float32))
    true = counts > 0
    columns = {name: column[_spread(index, true)] for name, column in events.columns.items()}
    return {
        "conditions": torch.from_numpy(features.conditions(columns)),
        "multiplicity": torch.from_numpy(np.where(true, _spread(multiplicity, true), 1)),
        "muons": torch.from_numpy(features.encode(events.items[rows], kind)),
        "event": torch.from_numpy(event),
        "kept": torch.from_numpy(np.append(kept, more).astype(np.float32)),
        "order": torch.from_numpy(_spread(order, true)),
        "counts": torch.from_numpy(counts),
        **({} if leading is None else {"lead": torch.from_numpy(lead), "below": torch.from_numpy(below)}),
    }


def _choose_leading(
    events: Events,
    index: NDArray[np.integer[Any]],
    leading: int,
    rows: NDArray[np.int64],
    lead: NDArray[np.float32],
    below: NDArray[np.float32],
    kept: NDArray[np.int64],
) -> None:
    """Begin each window with the leading muons of its event, and let a window of the others follow."""
    begins, starts = events.offsets()[index], offsets(kept)
    for number in np.flatnonzero(events.multiplicity[index] > kept):
        begin, size, most = int(begins[number]), int(events.multiplicity[index[number]]), int(kept[number])
        top = np.argpartition(events.items[begin : begin + size, 0], size - leading)[size - leading :]
        others = np.ones(size, np.bool_)
        others[top] = False
        first = starts[number]
        late = rows[first] - begin  # at most size - most
        rows[first : first + leading] = begin + top
        rows[first + leading : first + most] = begin + np.flatnonzero(others)[late : late + most - leading]
        lead[first : first + leading] = 1.0
        below[first] = size - most  # the first of them has the least energy


def _spread(values: NDArray[np.integer[Any]], true: NDArray[np.bool_]) -> NDArray[np.integer[Any]]:
    """Put values where ``true`` is, and the first of them elsewhere."""
    there = np.full(len(true), values[0] if len(values) else 0, values.dtype)
    there[true] = values
    return there


def sum_over_events(values: Tensor, batch: Batch) -> Tensor:
    """Add up one value for each of the batch's first events, [E], each times its weight."""
    return (values.flatten() * weights(batch)[: len(values)]).sum()


def events_of(batch: Batch) -> Tensor:
    """Count the events of a batch, or add up their weights: what a sum over events is divided by."""
    return weights(batch).sum()


def filled_context(batch: Batch) -> Tensor:
    """Return the context of the batch's events that have muons: [B', CONTEXT]."""
    filled = len(batch["kept"])
    return context_of(batch["conditions"][:filled], batch["multiplicity"][:filled])


@torch.no_grad()
def generate(
    events: Events,
    multiplicity: NDArray[np.int64],
    make: MakeMuons,
    generator: torch.Generator,
) -> Events:
    """Return each event its multiplicity [N] and muons in physical units.

    Memory is bounded but for the result: a bundle of any size is made in pieces.
    """
    if len(multiplicity) != len(events):
        raise ValueError(f"multiplicity holds {len(multiplicity)} values for {len(events)} events")
    ends = offsets(multiplicity)
    items = np.empty((int(ends[-1]), 3), np.float32)
    most = _PIECE.get(generator.device.type, _LARGE_PIECE)
    for block in _blocks(multiplicity, most):
        columns = {name: column[block] for name, column in events.columns.items()}
        counts = torch.from_numpy(multiplicity[block])
        context = context_of(torch.from_numpy(features.conditions(columns)), counts).to(generator.device)
        muons, event = make(context), np.repeat(np.arange(len(block)), multiplicity[block])
        first = int(ends[block[0]])
        for low in range(0, len(event), most):
            piece = torch.from_numpy(event[low : low + most]).to(generator.device)
            items[first + low : first + low + len(piece)] = muons(piece).cpu().numpy()
    return Events(events.columns, multiplicity.astype(np.uint32), items)


def _blocks(multiplicity: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Cut the events that have muons into blocks of at most ``most`` muons, or one larger event."""
    filled = np.flatnonzero(multiplicity)
    for first, last in cuts(multiplicity[filled], _EVENTS_AT_ONCE, most):
        yield filled[first:last]


@torch.no_grad()
def sampled(network: Multiplicity, events: Events, generator: torch.Generator) -> NDArray[np.int64]:
    """Draw a multiplicity for the conditions of each event: [N]."""
    device = generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    conditions = torch.from_numpy(features.conditions(events.columns)).to(device)
    return sample(network(conditions), np.random.default_rng(seed))


@torch.no_grad()
def negative_log_likelihood(
    network: Multiplicity, events: Events, device: torch.device
) -> NDArray[np.float64]:
    """Return minus the log probability of each event's multiplicity: [N]."""
    conditions = torch.from_numpy(features.conditions(events.columns)).to(device)
    true = torch.from_numpy(events.multiplicity.astype(np.int64)).to(device)
    return -log_likelihood(network(conditions), true).cpu().numpy()
