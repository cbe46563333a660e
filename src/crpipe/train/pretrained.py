"""Weights of another training: which ones ``train.pretrained`` and ``train.init_map`` load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.campaign.records import LoadedWeights
from crpipe.config.loading import PARTS_FIRST
from crpipe.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from crpipe.train.link_start import Saved

_MAX_NAMES = 8
_KEY = "train.pretrained"


@dataclass(frozen=True, slots=True)
class Match:
    """Which weights are loaded: ``names`` has, for each name here, the name there.

    missing: weights of the model that keep their initial values. unexpected: weights there without a place.
    """

    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def describe(self) -> str:
        """Return a line for a person, with the first names of each list."""
        total = len(self.names) + len(self.missing)
        return (
            f"{_KEY}: loaded {len(self.names)} of {total} weights; "
            f"missing: {list_names(self.missing)}; unexpected: {list_names(self.unexpected)}"
        )

    def record(self, source: Saved, warning: str = "") -> LoadedWeights:
        """Return the whole lists, for the run's ``init_from.json``, and a warning, if any."""
        return LoadedWeights(
            checkpoint=str(source.path),
            sha256=source.sha256,
            loaded=dict(self.names),
            missing=tuple(self.missing),
            unexpected=tuple(self.unexpected),
            warning=warning or None,
        )


def held_out_warning(source: Saved, keys: Mapping[str, Any]) -> str:
    """Return a warning of a checkpoint that may have seen held-out events, or "".

    In an earlier crpipe the size of an event came before its part.
    """
    if keys.get(PARTS_FIRST):
        return ""
    return (
        f"{_KEY}: {source.path} is of an earlier crpipe, which trained on large events of held-out groups, "
        "too: an evaluation here may judge it on events that it has seen; for numbers to rely on, train from "
        "fresh weights"
    )


def match_weights(
    model: Mapping[str, Tensor], there: Mapping[str, Tensor], prefixes: Mapping[str, str]
) -> Match:
    """Choose the weights to load: with ``prefixes`` (there: here) those they name, else all that fit.

    Raise CheckpointError when none is left, when a prefix names nothing, and when a named weight has another
    shape here.
    """
    if prefixes:
        names = _mapped(model, there, prefixes)
    else:
        names = {name: name for name in there if name in model and model[name].shape == there[name].shape}
    if not names:
        raise CheckpointError(f"{_KEY}: no weight of the checkpoint fits the model; nothing was loaded")
    used = set(names.values())
    return Match(
        names,
        tuple(sorted(name for name in model if name not in names)),
        tuple(sorted(name for name in there if name not in used)),
    )


def _mapped(
    model: Mapping[str, Tensor], there: Mapping[str, Tensor], prefixes: Mapping[str, str]
) -> dict[str, str]:
    names: dict[str, str] = {}
    useful = set()
    for name, value in there.items():
        fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
        if not fitting:
            continue
        prefix = max(fitting, key=len)
        here = prefixes[prefix] + name.removeprefix(prefix)
        if here not in model:
            continue
        if model[here].shape != value.shape:
            raise CheckpointError(
                f"train.init_map: {name} is {list(value.shape)} in the checkpoint, but {here} is "
                f"{list(model[here].shape)} in the model; map a part that has the same shapes"
            )
        if here in names:
            raise CheckpointError(f"train.init_map: both {names[here]} and {name} are mapped to {here}")
        names[here] = name
        useful.add(prefix)
    for prefix, here in prefixes.items():
        if prefix not in useful:
            raise CheckpointError(
                f"train.init_map: {prefix!r}: {here!r} matches nothing; weights in the checkpoint begin with "
                f"{list_names(_beginnings(there))}, those of the model with {list_names(_beginnings(model))}"
            )
    return names


def _beginnings(weights: Mapping[str, Tensor]) -> list[str]:
    return sorted({name.partition(".")[0] + "." for name in weights})


def list_names(names: Iterable[str]) -> str:
    """List some names; how many more there are, in words."""
    listed = sorted(names)
    more = f" and {len(listed) - _MAX_NAMES} more" if len(listed) > _MAX_NAMES else ""
    return (", ".join(listed[:_MAX_NAMES]) or "none") + more
