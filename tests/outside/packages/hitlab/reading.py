"""Reader of batch_N.parquet: one row for each hit; what belongs to which event is in the truth table."""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from crpipe.events.layout import MULTIPLICITY
from hitlab.layout import HITS

BLOCK = 100  # events
COLUMNS = ("detector", "time_ns", "charge")


@lru_cache(maxsize=2)
def truth_table(path):
    return pq.read_table(path)


@lru_cache(maxsize=2)
def detectors(path):
    return len(np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2))


class HitFiles:
    layout = HITS
    needs = ("truth", "geometry")

    def __init__(self, options):
        self.options = options

    def rows(self, path, tables):
        truth = self._truth(path, tables)
        known = detectors(tables["geometry"])
        try:
            hits = pq.read_table(path, columns=list(COLUMNS))
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a file of hits ({error})") from error
        if len(hits) != sum(truth[MULTIPLICITY]):
            raise FormatError(f"{path}: {len(hits)} hits, the truth table has {sum(truth[MULTIPLICITY])}")
        items = np.stack([hits[name].to_numpy().astype(np.float32) for name in COLUMNS], axis=1)
        if len(items) and items[:, 0].max() >= known:
            raise FormatError(f"{path}: detector {items[:, 0].max():.0f}, the geometry has {known} detectors")
        items[:, 2] *= self.options.charge_scale
        counts = truth[MULTIPLICITY]
        ends = np.concatenate([[0], np.cumsum(counts)])
        for first in range(0, len(counts), BLOCK):
            part = slice(first, min(first + BLOCK, len(counts)))
            columns = {field.name: truth[field.name][part].astype(field.dtype) for field in HITS.events}
            own = items[ends[part.start] : ends[part.stop]]
            yield Events(columns, counts[part].astype(np.uint32), own)

    def totals(self, path, tables):
        try:
            return len(self._truth(path, tables)[MULTIPLICITY]), pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a file of hits ({error})") from error

    def _truth(self, path, tables):
        """Return the columns of the events in one file, in the order of the file."""
        batch = int(path.stem.removeprefix("batch_"))
        table = truth_table(tables["truth"])
        rows = table.filter(pc.equal(table["batch"], batch))
        return {name: rows[name].to_numpy() for name in rows.column_names}
