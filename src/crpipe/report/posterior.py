"""``crpipe compare --posterior``: which of several runs generates events that are most like true ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.causes import is_present
from crpipe.core.errors import DataError
from crpipe.core.files import atomic_write
from crpipe.core.text import Column, measured, table
from crpipe.statistics.classifier import LabelledRows
from crpipe.statistics.posterior import log_posteriors
from crpipe.statistics.verdict import DIFFERS, Difference

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

WIDTH = 160
ROWS = "classified.parquet"  # beside metrics.json: what classifiers looked at


def write_rows(folder: Path, rows: Mapping[str, LabelledRows]) -> None:
    """Keep what classifiers looked at in an evaluation, by the name that a person sees."""
    tables = []
    for name, one in rows.items():
        columns = {"real": one.real, "event": one.event, "group": one.group[one.event], "weight": one.weight}
        features = pa.array(list(one.features), pa.list_(pa.float64()))
        names = pa.array([name] * len(one.event), pa.string())
        tables.append(pa.table({"rows": names, **columns, "features": features}))
    with atomic_write(folder / ROWS) as part:
        pq.write_table(pa.concat_tables(tables), part, compression="zstd")


def read_rows(path: Path) -> dict[str, LabelledRows]:
    """Read what ``write_rows`` wrote; raise DataError where there is none."""
    if not is_present(path):
        raise DataError(
            f"{path}: no such file: the evaluation kept no events for classifiers (no generator, too few "
            "groups, no scikit-learn, or an older crpipe); evaluate again"
        )
    table = pq.read_table(path)
    rows = {}
    for name in table["rows"].unique().to_pylist():
        one = table.filter(pc.field("rows") == name)
        event = one["event"].to_numpy()
        group = np.zeros(event.max() + 1, np.int64)  # of events without rows: any
        group[event] = one["group"].to_numpy()
        features = np.stack(one["features"].to_numpy())
        rows[name] = LabelledRows(features, one["real"].to_numpy(), event, group, one["weight"].to_numpy())
    return rows


def render_posteriors(evaluations: Mapping[str, Path]) -> str:
    """Write the mean log-posterior of each run over true events, and which is best.

    evaluations: the folder of the newest one of each run. Raise DataError where they have no events, or not
    the same true ones.
    """
    kept = {run: read_rows(folder / ROWS) for run, folder in evaluations.items()}
    names = [name for name in next(iter(kept.values())) if all(name in rows for rows in kept.values())]
    rows = [_compared({run: rows[name] for run, rows in kept.items()}) for name in names]
    columns = [Column(run, [cells[number] for cells, _ in rows]) for number, run in enumerate(kept)]
    best = Column("best", [word for _, word in rows])
    alike = f"log-posterior, mean over true events; {-math.log(len(kept)):.3f} where all runs are alike"
    return "\n".join(
        [alike, *(f"  {line}" for line in table([Column("events", names), *columns, best], WIDTH))]
    )


def _compared(models: Mapping[str, LabelledRows]) -> tuple[list[str], str]:
    """Return the number of each run in words, and which is best beyond 2 errors."""
    first, *others = models
    for other in others:
        for name in ("features", "event"):
            mine, its = (getattr(models[run], name)[models[run].real] for run in (first, other))
            if not np.array_equal(mine, its):
                raise DataError(
                    f"{first}, {other}: judged on other true events; give both runs the same results, "
                    "seed and section `evaluate`, and evaluate again"
                )
    values = log_posteriors(list(models.values()))
    if values is None:
        return ["-"] * len(models), "too few groups"
    best, second = np.argsort(-values.mean(axis=0))[:2]
    word = Difference(*_mean_and_error(values[:, best] - values[:, second]), len(values)).word()
    cells = [measured(*_mean_and_error(column)) for column in values.T]
    return cells, list(models)[best] if word == DIFFERS else word


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
