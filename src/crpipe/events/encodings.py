"""Chooses how each item column of a shard is encoded: small, and where that costs next to nothing, fast.

The first values of a column come in; the options of a Parquet writer go out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE = 1 << 16  # values of each column that are compressed to choose
# LZ4 is decoded in half the time of zstd. It may take so much more of a column's uncompressed bytes: mostly
# constant columns get it. A column of real measurements would grow by 6 to 25 % of them.
GROWTH = 0.02
_LEVEL = 1


def item_options(names: list[str], items: NDArray[np.float32]) -> dict[str, Any]:
    """Choose for the columns of ``items``, [M, K], from its first rows alone: options of a ParquetWriter.

    Each column is written with zstd and its bytes split into streams, or with LZ4, split or not.
    """
    chosen = {name: _choose(items[:SAMPLE, column]) for column, name in enumerate(names)}
    zstd = [name for name, (codec, _) in chosen.items() if codec == "zstd"]
    return {
        "compression": {name: codec for name, (codec, _) in chosen.items()},
        "compression_level": dict.fromkeys(zstd, _LEVEL),
        "use_byte_stream_split": [name for name, (_, split) in chosen.items() if split],
    }


def _choose(values: NDArray[np.float32]) -> tuple[str, bool]:
    """Give the codec of a column, and whether its bytes are split into streams."""
    whole = np.ascontiguousarray(values).view(np.uint8)
    split = np.ascontiguousarray(whole.reshape(-1, values.itemsize).T)
    zstd = len(pa.Codec("zstd", _LEVEL).compress(split.tobytes()))
    lz4 = pa.Codec("lz4_raw")
    sizes = {False: len(lz4.compress(whole.tobytes())), True: len(lz4.compress(split.tobytes()))}
    smaller = sizes[True] <= sizes[False]
    if sizes[smaller] <= zstd + GROWTH * whole.size:
        return "lz4", smaller
    return "zstd", True
