"""The form of a checkpoint's content: what its fields hold, whoever wrote the file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = (str, int, float, bool, type(None))
_FIELDS = ("keys", "model", "average", "optimizers", "shares", "counters")
_COUNTERS = ("step", "range_step", "events", "items", "skipped", "skipped_in_row")


def is_name(value: Any) -> bool:
    """Return whether a value is the name of a file in a folder, and of nothing outside of it."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & {*value}


def problems(state: dict[Any, Any]) -> Iterator[str]:
    """Name what is missing from a state, or of another type."""
    for name in _FIELDS:
        if not isinstance(state.get(name), dict):
            yield f"{name} is no mapping" if name in state else f"{name} is missing"
        yield from (f"{name} has a key that is no text" for each in state[name] if not isinstance(each, str))
    for name, value in state["keys"].items():
        parents = name.split(".")[:-1]
        inside = [".".join(parents[: end + 1]) for end in range(len(parents))]
        yield from (f"keys has both {each} and {name}" for each in inside if each in state["keys"])
        if not _is_plain(value):
            yield f"the key {name} is no plain value"
    for kind in ("model", "average"):
        yield from (
            f"{kind} holds {each}, no tensor" for each, at in state[kind].items() if not _is_dense(at)
        )
    yield from (f"the share {each} is no number" for each, at in state["shares"].items() if not _is_real(at))
    yield from _counter_problems(state["counters"])
    for name, optimizer in state["optimizers"].items():
        if not _is_optimizer(optimizer):
            yield f"the optimizer {name} is none"
    computed = state.get("numerics", [])
    if not (isinstance(computed, list) and all(isinstance(at, dict) and _is_plain(at) for at in computed)):
        yield "numerics is no list of mappings"
    if "range" in state and not is_name(state["range"]):
        yield "range is no name of a range"


def _counter_problems(counters: dict[str, Any]) -> Iterator[str]:
    cursor = counters.get("cursor")
    if not (isinstance(cursor, list) and [type(each) for each in cursor] == [int, int] and min(cursor) >= 0):
        yield "counters has no cursor"
    if counters.keys() != {*_COUNTERS, "cursor"}:
        yield f"counters has {', '.join(sorted(counters))}"
    for name in _COUNTERS:
        if type(counters[name]) is not int or counters[name] < 0:
            yield f"the counter {name} is no whole number"


def _is_plain(value: Any) -> bool:
    """Return whether a value is one of JSON."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, PLAIN)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_dense(value: Any) -> bool:
    """Return whether a value is a tensor that holds all its numbers."""
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized
    return plain and value.device.type == "cpu" and value.nbytes <= value.untyped_storage().nbytes()


def _is_optimizer(saved: Any) -> bool:
    """Return whether a value has the form of what torch's optimizers save."""
    match saved:
        case {"state": dict(state), "param_groups": [*groups]}:
            listed = [group.get("params") for group in groups if isinstance(group, dict)]
            params = [each for one in listed if isinstance(one, list) for each in one]
            slots = [value for each in state.values() if isinstance(each, dict) for value in each.values()]
            known = all(type(index) is int and 0 <= index < len(params) for index in state)
            whole = len(listed) == len(groups) and all(isinstance(each, dict) for each in state.values())
            good = all(_is_dense(value) or _is_real(value) for value in slots)
            return whole and known and good and params == list(range(len(params)))
    return False
