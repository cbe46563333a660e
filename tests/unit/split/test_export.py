import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import ShardError
from crpipe.core.paths import ROLES
from crpipe.events.batch import concatenate
from crpipe.workloads.muons.layout import SCHEMA
from named import READERS
from plain_reader import HITS, make_hits, write_events
from raw_files import NAME, campaign, export, make_events, raw_folder, split, write_parquet, write_staged

MULTIPLICITY = [0, 3, 25, 1, 0, 2] * 20


@pytest.fixture
def config(tmp_path):
    """A campaign of one split range."""
    config = campaign(tmp_path)
    write_parquet(raw_folder(config) / "a.parquet", MULTIPLICITY)
    write_staged(config)
    split(config)
    return config


def test_a_reader_that_writes_raw_files_gives_every_event_in_their_schema(config, tmp_path):
    out = tmp_path / "out"
    assert export(config, out) == len(MULTIPLICITY)
    reader = ReaderChoice(READERS["bundles"]).open()
    assert all(pq.read_schema(path).equals(SCHEMA) for path in out.iterdir())
    events = concatenate([concatenate(list(reader.rows(path))) for path in sorted(out.iterdir())])
    columns, multiplicity, items = make_events(MULTIPLICITY)
    assert sorted(events.multiplicity) == sorted(multiplicity)
    order = np.lexsort(events.items.T)
    assert np.array_equal(events.items[order], items[np.lexsort(items.T)])
    assert set(events.columns["energy_gev"]) == set(columns["energy_gev"])


def test_other_layouts_become_a_list_column_per_item_column(tmp_path):
    config = campaign(tmp_path, "source.reader=plain_reader:Plain", "split.test_fraction=0.3")
    events = make_hits(MULTIPLICITY)
    write_events(raw_folder(config) / "a.npz", events)
    write_staged(config)
    split(config)
    assert export(config, tmp_path / "out") == len(MULTIPLICITY)
    tables = {path.stem: pq.read_table(path) for path in (tmp_path / "out").iterdir()}
    assert set(tables) <= {*ROLES} >= {"train", "validation", "test", "outliers"}
    table = pa.concat_tables(tables.values()).sort_by("source_row")
    names = [*(field.name for field in HITS.events), "source_file", "source_row", "multiplicity"]
    assert table.column_names == [*names, "hits_time_ns", "hits_charge"]
    assert table["number"].to_pylist() == events.columns["number"].tolist()
    assert table["good"].to_pylist() == events.columns["good"].tolist()
    lists = np.split(events.items, events.offsets()[1:-1])
    assert table["hits_time_ns"].to_pylist() == [each[:, 0].tolist() for each in lists]
    assert table["hits_charge"].to_pylist() == [each[:, 1].tolist() for each in lists]


def test_without_a_reader_any_shards_are_exported(config, tmp_path):
    assert export(config, tmp_path / "out", reader=False) == len(MULTIPLICITY)
    columns = pq.read_schema(tmp_path / "out" / "train.parquet").names
    assert columns[-3:] == ["muons_energy_gev", "muons_x_m", "muons_y_m"]


def test_shards_of_another_layout_than_the_reader_are_refused(config, tmp_path):
    path = config.paths().shard_manifest(NAME)
    manifest = json.loads(path.read_text())
    manifest["layout"]["items"][0]["unit"] = "TeV"
    path.unlink()
    path.write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match=rf"{path}: its layout is not that of the reader"):
        export(config, tmp_path / "out")
