"""Two readers of the same jets: Parquet files with lists, and NPZ archives with all particles end to end."""

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.author import Field, Layout, Reader

JETS = Layout(
    item="particles",
    events=(
        Field("jet_id", "uint64", "", 0, 2**63, "number of the jet"),
        Field("label", "uint8", "", 0, 2, "class: quark, gluon, top"),
        Field("jet_pt_gev", "float32", "GeV", 0, 1e5, "transverse momentum"),
    ),
    items=(
        Field("pt_gev", "float32", "GeV", 0, 1e5, "transverse momentum"),
        Field("eta", "float32", "", -10, 10, "pseudorapidity, from the axis of the jet"),
        Field("phi", "float32", "rad", -4, 4, "azimuth, from the axis of the jet"),
    ),
    group=("jet_id",),
    key=("jet_id",),
)
EVENTS = [field.name for field in JETS.events]
ITEMS = [field.name for field in JETS.items]


class ParquetJets(Reader):
    layout = JETS

    def rows(self, path, tables):
        for batch in pq.ParquetFile(path, page_checksum_verification=True).iter_batches(2000):
            items = {name: batch[name].flatten() for name in ITEMS}
            yield self.block(pc.list_value_length(batch[ITEMS[0]]), {n: batch[n] for n in EVENTS}, items)

    def totals(self, path, tables):
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return metadata.num_rows, sum(group.column(len(EVENTS)).num_values for group in groups)


class NpzJets(Reader):
    layout = JETS

    def rows(self, path, tables):
        with np.load(path) as file:
            yield self.block(file["count"], {n: file[n] for n in EVENTS}, {n: file[n] for n in ITEMS})

    def totals(self, path, tables):
        with np.load(path) as file:
            return len(file["label"]), int(file["count"].sum())
