from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from crpipe.core.paths import MANIFEST
from crpipe.events import shard_writer
from crpipe.events.layout import LARGE, Field
from crpipe.events.shard_manifest import read_group
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_records import ShardManifest
from crpipe.events.shard_writer import item_options, write_shard
from plain_reader import HITS, make_hits

FIELDS = tuple(Field(name, "float32", "", -1e9, 1e9, "") for name in ("random", "flag", "rare"))
LAYOUT = replace(HITS, items=FIELDS)


def columns(count=100_000):
    random = np.random.default_rng(1)
    rare = np.where(random.random(count) < 0.01, random.normal(size=count), 0)
    found = [np.exp(random.normal(size=count)), random.random(count) < 0.001, rare]
    return np.stack(found, axis=1).astype(np.float32)


def test_mostly_constant_columns_get_the_faster_codec():
    options = item_options(LAYOUT, columns())
    assert options["compression"] == {"random": "zstd", "flag": "lz4", "rare": "lz4"}
    assert options["compression_level"] == {"random": 1}
    assert "random" in options["use_byte_stream_split"]


def test_large_events_of_one_size_get_it_more_easily():
    options = item_options(replace(LAYOUT, fixed=LARGE), columns())
    assert options["compression"] == {"random": "lz4", "flag": "lz4", "rare": "lz4"}
    assert item_options(replace(LAYOUT, fixed=LARGE - 1), columns()) == item_options(LAYOUT, columns())


def test_the_first_rows_alone_decide():
    items = columns()
    options = item_options(LAYOUT, items)
    items[shard_writer.SAMPLE :, 1] = np.random.default_rng(2).normal(size=len(items) - shard_writer.SAMPLE)
    assert item_options(LAYOUT, items) == options


def test_a_shard_without_items_can_be_encoded():
    assert len(item_options(LAYOUT, np.empty((0, 3), np.float32))["compression"]) == 3


@pytest.mark.parametrize("growth", [-2, shard_writer.GROWTH, 2])
def test_events_come_back_whatever_the_codec(tmp_path, monkeypatch, growth):
    monkeypatch.setattr(shard_writer, "GROWTH", growth)
    events = make_hits([3, 0, 5] * 40)
    full = events.columns | {name: np.arange(120, dtype=np.uint32) for name in ("source_file", "source_row")}
    entry = write_shard(
        tmp_path, "train-00000", "train", HITS, [type(events)(full, events.multiplicity, events.items)]
    )
    footer = pq.read_metadata(tmp_path / "train-00000.hits.parquet").row_group(0)
    found = {footer.column(column).compression for column in range(2)}
    assert growth == shard_writer.GROWTH or found == {"ZSTD" if growth < 0 else "LZ4"}
    ShardManifest(range="0", data="", shards=(entry,)).write(tmp_path / MANIFEST)
    back = read_group(Shards(tmp_path, "train", HITS), 0, 0, HITS)
    assert np.array_equal(back.items, events.items)
