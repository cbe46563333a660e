"""Keyed 64-bit hashes of whole columns: the same number on every machine, in every order of reading.

They decide an event's place in the shuffle and its part (training, validation, test) from its identity alone.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def shuffle_keys(files: NDArray[np.uint32], rows: NDArray[np.uint32], seed: int) -> NDArray[np.uint64]:
    """Place of each event in the range's shuffle, [N]; distinct for distinct (file, row).

    Sorting by this key shuffles: the order depends on the seed and on where an event came from, never on
    which process read it or when.
    """
    place = files.astype(np.uint64) << np.uint64(32) | rows.astype(np.uint64)
    return _mix(_mix(place ^ _secret(seed, "shuffle")))


def share_of(columns: Iterable[NDArray[Any]], fractions: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Divide the groups of events that share the values in ``columns`` at random into shares, [N].

    The number of a share is its place in ``fractions``, which add up to less than 1; the rest is the last.
    """
    key: Any = _secret(seed, "validation")
    for column in columns:
        key = _mix(key ^ _bits(column))
    limits = np.array([int(end * 2**64) for end in itertools.accumulate(fractions)], np.uint64)
    return np.searchsorted(limits, np.atleast_1d(key), side="right").astype(np.int64)


def bucket_of(keys: NDArray[np.uint64], buckets: int | NDArray[np.uint64]) -> NDArray[np.int64]:
    """Cut the space of keys into equal intervals, in ascending order, and return each key's number, [N].

    buckets: how many intervals, for all keys or for each.
    """
    return ((keys >> np.uint64(32)) * np.asarray(buckets, np.uint64) >> np.uint64(32)).astype(np.int64)


def identities(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Give each row of some columns a number, [N]: the same for equal values, another one for others."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key ^= _bits(column)
        key *= _INCREMENT  # odd, so one-to-one; the shift brings the upper bits down
        key ^= key >> np.uint64(32)
    return key


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    if column.dtype.kind == "f":
        column = (column + 0.0).view(f"u{column.itemsize}")  # -0.0 and 0.0 are one value
    return column.astype(np.uint64)


def _mix(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble one-to-one: the output step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    key = key + _INCREMENT
    key = (key ^ key >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ key >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return key ^ key >> np.uint64(31)


def _secret(seed: int, purpose: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:8], "little"))
