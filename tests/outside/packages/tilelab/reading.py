"""Reader of tiles_N.parquet: one row for each event, lists of 64; the gains are in a table."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from tilelab.layout import COUNT, TILES


class TileFiles:
    layout = TILES
    needs = ("gains",)

    def rows(self, path, tables):
        gains = np.loadtxt(tables["gains"], delimiter=",", skiprows=1)[:, 1]
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(50):
                    yield self._block(batch, gains)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a file of tiles ({error})") from error

    def totals(self, path, tables):
        try:
            events = pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a file of tiles ({error})") from error
        return events, COUNT * events

    def _block(self, batch, gains):
        signal = batch["counts"].flatten().to_numpy().reshape(-1, COUNT) * gains
        delay = batch["delay_ns"].flatten().to_numpy().reshape(-1, COUNT)
        items = np.stack([signal, delay], axis=2).astype(np.float32).reshape(-1, 2)
        columns = {field.name: batch[field.name].to_numpy().astype(field.dtype) for field in TILES.events}
        return Events(columns, np.full(batch.num_rows, COUNT, np.uint32), items)
