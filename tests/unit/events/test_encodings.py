import numpy as np
import pyarrow.parquet as pq
import pytest

from crpipe.events import encodings
from crpipe.events.shard_manifest import read_group
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_writer import write_shard
from plain_reader import HITS, make_hits

NAMES = ["random", "flag", "rare"]


def columns(count=100_000):
    random = np.random.default_rng(1)
    rare = np.where(random.random(count) < 0.01, random.normal(size=count), 0)
    return np.stack([random.normal(size=count), random.random(count) < 0.001, rare], axis=1).astype(
        np.float32
    )


def test_mostly_constant_columns_get_the_faster_codec():
    options = encodings.item_options(NAMES, columns())
    assert options["compression"] == {"random": "zstd", "flag": "lz4", "rare": "lz4"}
    assert options["compression_level"] == {"random": 1}
    assert "random" in options["use_byte_stream_split"]


def test_the_first_rows_alone_decide():
    items = columns()
    options = encodings.item_options(NAMES, items)
    items[encodings.SAMPLE :, 1] = np.random.default_rng(2).normal(size=len(items) - encodings.SAMPLE)
    assert encodings.item_options(NAMES, items) == options


def test_a_shard_without_items_can_be_encoded():
    assert encodings.item_options(["a"], np.empty((0, 1), np.float32))["compression"].keys() == {"a"}


@pytest.mark.parametrize("growth", [-2, encodings.GROWTH, 2])
def test_events_come_back_whatever_the_codec(tmp_path, monkeypatch, growth):
    monkeypatch.setattr(encodings, "GROWTH", growth)
    events = make_hits([3, 0, 5] * 40)
    full = events.columns | {name: np.arange(120, dtype=np.uint32) for name in ("source_file", "source_row")}
    entry = write_shard(
        tmp_path, "train-00000", "train", HITS, [type(events)(full, events.multiplicity, events.items)]
    )
    footer = pq.read_metadata(tmp_path / "train-00000.hits.parquet").row_group(0)
    found = {footer.column(column).compression for column in range(2)}
    assert growth == encodings.GROWTH or found == {"ZSTD" if growth < 0 else "LZ4"}
    monkeypatch.setattr("crpipe.events.shard_reader.read_json", lambda _: {"shards": [entry]})
    back = read_group(Shards(tmp_path, "train", HITS), 0, 0, HITS)
    assert np.array_equal(back.items, events.items)
