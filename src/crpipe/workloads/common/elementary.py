"""Functions whose float32 results do not depend on the version of the C library: computed in float64.

numpy takes these from libm where the processor has no vectors for them, and glibc changed their float32 forms
in 2.41. ``log``, ``exp``, ``sin``, ``cos``, ``hypot``, ``power`` and ``sqrt`` are the same in all versions
measured (docs/weeks.md). So are float64 functions, but for ``arctan``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def _in_double(function: np.ufunc, *arguments: ArrayLike) -> NDArray[Any]:
    """Compute in float64; the result has the type of the arguments. numpy casts piece by piece, no copies."""
    arrays = [np.asarray(each) for each in arguments]
    kind = np.result_type(*arguments)
    if not np.issubdtype(kind, np.floating) or kind.itemsize > np.dtype(np.float64).itemsize:
        kind = np.dtype(np.float64)
    out = np.empty(np.broadcast_shapes(*(each.shape for each in arrays)), kind)
    function(*arrays, out=out, dtype=np.float64, casting="same_kind")
    return out[()]


def log10(x: ArrayLike) -> NDArray[Any]:
    """Compute the decimal logarithm."""
    return _in_double(np.log10, x)


def log1p(x: ArrayLike) -> NDArray[Any]:
    """Compute log(1 + x)."""
    return _in_double(np.log1p, x)


def expm1(x: ArrayLike) -> NDArray[Any]:
    """Compute exp(x) - 1."""
    return _in_double(np.expm1, x)


def arcsin(x: ArrayLike) -> NDArray[Any]:
    """Compute the angle of a sine."""
    return _in_double(np.arcsin, x)


def arccos(x: ArrayLike) -> NDArray[Any]:
    """Compute the angle of a cosine."""
    return _in_double(np.arccos, x)


def arctan2(y: ArrayLike, x: ArrayLike) -> NDArray[Any]:
    """Compute the angle of a point; with x = 1, the arctangent of y."""
    return _in_double(np.arctan2, y, x)


def normal(rng: np.random.Generator, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
    """Draw standard normal numbers: float32, from numpy's float64 method."""
    return rng.standard_normal(shape).astype(np.float32)


def exponential(rng: np.random.Generator, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
    """Draw standard exponential numbers: float32, from numpy's float64 method."""
    return rng.standard_exponential(shape).astype(np.float32)


def gamma(rng: np.random.Generator, shape: NDArray[np.float32]) -> NDArray[np.float32]:
    """Draw a standard gamma variate for each shape: float32, from numpy's float64 method."""
    return rng.standard_gamma(shape).astype(np.float32)
