"""The contract of a workload's batches: its members, ``size`` and ``collate``."""

from __future__ import annotations

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.config.loading import validate
from crpipe.contract.cases import Case, check
from crpipe.contract.readers import refuse_unknown_option, same_events
from crpipe.core.errors import ConfigError, PluginError
from crpipe.inference.members import unused_members
from crpipe.setup.compatibility import check_fit
from crpipe.train.answers import collated, refuse, sizes_of

if TYPE_CHECKING:
    from torch import Tensor

    from crpipe.train.workload import Batch

KIND = "workload"
_SEED = (1, 2, 3)


def same_batches(one: Batch, other: Batch) -> bool:
    """Compare two batches, byte for byte."""
    return not changed_tensors(one, other)


def changed_tensors(one: Batch, other: Batch) -> list[str]:
    """Name the tensors that differ in a byte, or are missing on one side; NaN is equal to NaN."""
    common = [name for name in one if name in other]
    return [*(one.keys() ^ other.keys()), *(name for name in common if not _same(one[name], other[name]))]


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.detach().reshape(-1).view(torch.uint8) for each in (one, other)))


@check(KIND)
def it_fits_its_reader(case: Case) -> None:
    """Columns, weights, tables, histograms and phases are what the reader and the configuration give."""
    tree = case.config.model_dump(mode="json", exclude_unset=True)
    tree.setdefault("source", {})["tables"] = {name: str(path) for name, path in case.tables.items()}
    tree |= {"results": str(case.folder / "results"), "runs": str(case.folder / "runs")}
    try:
        check_fit(validate(tree))
    except ConfigError as error:
        refuse(case.plugin(KIND), f"what fits {case.plugin('reader')}", str(error))


@check(KIND, doubt=True)
def optional_members_are_whole_and_have_their_names(case: Case) -> None:
    """A member that is misspelt, or one of two that belong together, is not used, and nobody is told."""
    for name, why in unused_members(case.workload()):
        raise PluginError(f"{case.plugin(KIND)}.{name}: nothing calls it; {why}")


@check(KIND, doubt=True)
def an_unknown_option_is_refused_in_one_line(case: Case) -> None:
    """A misspelt option must not be silence."""
    refuse_unknown_option(case, KIND)


@check(KIND)
def size_is_a_number_for_each_event_alone(case: Case) -> None:
    """[N] whole numbers, which do not depend on the other events."""
    workload, events = case.workload(), case.events
    method = f"{case.plugin(KIND)}.size"
    size = sizes_of(workload, events)
    if not isinstance(size, np.ndarray) or size.shape != (len(events),) or size.dtype.kind not in "iu":
        refuse(
            method,
            f"whole numbers [{len(events)}]",
            f"{getattr(size, 'dtype', type(size).__name__)} {np.shape(size)}",
        )
    if size.min() < 0:
        refuse(method, "numbers of at least 0", f"{size.min()}")
    mixed = np.arange(len(events))[::-2]
    if not np.array_equal(sizes_of(workload, events.take(mixed)), size[mixed]):
        refuse(method, "the same size in any batch", "another one among other events")


@check(KIND)
def collate_gives_tensors_on_the_cpu(case: Case) -> None:
    """{name: tensor}; float64 would double what a model of float32 computes, or be refused by it."""
    method, workload = f"{case.plugin(KIND)}.collate", case.workload()
    batch = collated(workload, case.events, np.arange(len(case.events)), _SEED)
    for name, value in batch.items():
        if value.dtype == torch.float64:
            refuse(method, f"{name!r} of float32", "float64")


@check(KIND)
def collate_follows_from_its_arguments(case: Case) -> None:
    """The same bytes again, in another process's state of random numbers, and by another workload."""
    method, workload, events = f"{case.plugin(KIND)}.collate", case.workload(), case.events
    index = np.random.default_rng(1).permutation(len(events))
    before = _generators()
    first = case.batch(workload, events, index, _SEED)
    used = [name for name, state in _generators().items() if state != before[name]]
    if used:
        refuse(
            method, "random numbers from `seed` alone", f"a draw from the process's generator of {used[0]}"
        )
    case.batch(workload, events, index[:1], (9,))
    torch.manual_seed(5)
    for other in (workload, case.workload()):
        if not same_batches(first, case.batch(other, events, index, _SEED)):
            refuse(method, "the same tensors for the same events and seed", "others")


def _generators() -> dict[str, Any]:
    numpy: Any = np.random.get_state()  # noqa: NPY002 - that nobody may draw from
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy[1].tobytes(), *numpy[2:]),
        "random": random.getstate(),
    }


@check(KIND)
def collate_changes_no_event(case: Case) -> None:
    """The same events are collated again in the next epoch, and read by other threads meanwhile."""
    method, workload = f"{case.plugin(KIND)}.collate", case.workload()
    for index in (np.arange(len(case.events)), np.arange(len(case.events))[::-1].copy()):
        events, chosen = copy.deepcopy(case.events), index.copy()
        batch = case.batch(workload, events, chosen, _SEED)
        kept = {name: value.clone() for name, value in batch.items()}
        if not same_events(events, case.events) or not np.array_equal(chosen, index):
            refuse(method, "its events and index unchanged", "other values after the call")
        case.batch(workload, case.events, index[-2:], _SEED)
        if not same_batches(batch, kept):
            refuse(method, "tensors of its own for each batch", "tensors that a later call changed")


@check(KIND)
def collate_at_the_same_time(case: Case) -> None:
    """Several threads make batches beside the training (load.collate_workers)."""
    workload, events = case.workload(), case.events
    index = np.arange(len(events))
    alone = [case.batch(workload, events, index, (seed,)) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        together = threads.map(lambda seed: case.batch(workload, events, index, (seed,)), range(8))
        same = [same_batches(*pair) for pair in zip(together, alone, strict=True)]
    if not all(same):
        refuse(f"{case.plugin(KIND)}.collate", "the same tensors from several threads at once", "others")
