"""Chooses how each item column of a shard is encoded: small, and where that costs next to nothing, fast.

The first values of a column come in; the options of a Parquet writer go out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.events.layout import LARGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

SAMPLE = 1 << 16  # values of each column that are compressed to choose
# LZ4 is decoded in half the time of zstd. It may take so much more of a column's uncompressed bytes: mostly
# constant columns get it. A column of real measurements would grow by 6 to 25 % of them.
GROWTH = 0.02
LARGE_GROWTH = 0.08  # where events have one large number of items, so that reading them is mostly decoding
_LEVEL = 1


def item_options(layout: Layout, items: NDArray[np.float32]) -> dict[str, Any]:
    """Choose for the columns of ``items``, [M, K], from its first rows alone: options of a ParquetWriter.

    Each column is written with zstd and its bytes split into streams, or with LZ4, split or not.
    """
    growth = LARGE_GROWTH if layout.fixed >= LARGE else GROWTH
    chosen = {
        field.name: _choose(items[:SAMPLE, column], growth) for column, field in enumerate(layout.items)
    }
    zstd = [name for name, (codec, _) in chosen.items() if codec == "zstd"]
    return {
        "compression": {name: codec for name, (codec, _) in chosen.items()},
        "compression_level": dict.fromkeys(zstd, _LEVEL),
        "use_byte_stream_split": [name for name, (_, split) in chosen.items() if split],
    }


def _choose(values: NDArray[np.float32], growth: float) -> tuple[str, bool]:
    """Give the codec of a column, and whether its bytes are split into streams."""
    whole = np.ascontiguousarray(values).view(np.uint8)
    split = np.ascontiguousarray(whole.reshape(-1, values.itemsize).T)
    zstd = len(pa.Codec("zstd", _LEVEL).compress(split.tobytes()))
    lz4 = pa.Codec("lz4_raw")
    sizes = {False: len(lz4.compress(whole.tobytes())), True: len(lz4.compress(split.tobytes()))}
    smaller = sizes[True] <= sizes[False]
    if sizes[smaller] <= zstd + growth * whole.size:
        return "lz4", smaller
    return "zstd", True
