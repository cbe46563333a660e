"""Which threshold costs what: outliers set aside against the memory that the largest bulk events may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.errors import DataError
from crpipe.files import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from crpipe.config import Config

_BYTES = 12  # one muon in a batch: three float32
_LEAST_SHARE = 0.5  # thresholds that would set aside more than this share of the muons are of no use
_MIB = 1 << 20


def suggest_threshold(config: Config) -> str:
    """Tabulate, from the histograms of the ranges split so far, thresholds against what each sets aside.

    ``batch mean`` and ``batch + 3 sd`` are the muons' memory in a batch of ``load.batch_events`` bulk events.
    Raise DataError when no range has been split yet.
    """
    edges, events = _histogram(config)
    middles = np.where(edges[:-1] == 0, 0.0, np.sqrt(edges[:-1] * (edges[1:] - 1.0)))
    muons = events * middles
    batch = config.load.batch_events
    rows: list[tuple[str, ...]] = [("threshold", "events aside", "muons aside", "batch mean", "batch + 3 sd")]
    for bin_end in range(1, len(edges)):
        kept = slice(0, bin_end)
        aside = muons[bin_end:].sum() / max(muons.sum(), 1)
        if not events[kept].sum() or aside > _LEAST_SHARE:
            continue
        weights = events[kept] / events[kept].sum()
        mean = float(weights @ middles[kept])
        spread = float(np.sqrt(weights @ (middles[kept] - mean) ** 2 * batch))
        size = [f"{count * _BYTES / _MIB:.1f} MiB" for count in (mean * batch, mean * batch + 3 * spread)]
        share = events[bin_end:].sum() / events.sum()
        rows.append((str(edges[bin_end] - 1), f"{share:.3%}", f"{aside:.1%}", *size))
        if not events[bin_end:].any():
            break
    return "\n".join([*_aligned(rows), f"batches of {batch} events (load.batch_events)"])


def _histogram(config: Config) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tables = [config.paths().multiplicity(str(each)) for each in config.all_ranges()]
    found = [table.with_name(f"{table.stem}.histogram.json") for table in tables]
    histograms = [read_json(path) for path in found if path.exists()]
    if not histograms:
        raise DataError(
            f"{tables[0].parent}: no histogram yet; run `crpipe split` for at least one range first"
        )
    edges = np.array(histograms[0]["edges"], np.int64)
    return edges, np.sum([each["events"] for each in histograms], axis=0)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
