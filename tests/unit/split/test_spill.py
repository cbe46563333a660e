"""Spilled events come back from their buckets, whatever was flushed before a raw file turned out bad."""

import contextlib

import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW
from crpipe.split.spill import SpillReader, SpillWriter, segments_of
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import make_events

BUCKETS = 3
OUTLIERS = 2  # the last bucket


def events_of(number, multiplicity):
    columns, multiplicity, items = make_events(np.array(multiplicity), seed=number)
    rows = np.arange(len(multiplicity), dtype=np.uint32)
    columns |= {SOURCE_FILE: np.full(len(rows), number, np.uint32), SOURCE_ROW: rows}
    return Events(columns, multiplicity.astype(np.uint32), items)


def places(events):
    return list(zip(events.columns[SOURCE_FILE].tolist(), events.columns[SOURCE_ROW].tolist(), strict=True))


@pytest.mark.parametrize("held", [0, 100, 1 << 20])
def test_kept_events_come_back_and_forgotten_ones_do_not(tmp_path, monkeypatch, held):
    monkeypatch.setattr("crpipe.split.spill._BLOCK_BYTES", held)
    monkeypatch.setattr("crpipe.split.spill._PIECE", 2)
    expected = {}
    with contextlib.closing(SpillWriter(tmp_path, 0, BUNDLES, BUCKETS)) as writer:
        for number in range(4):
            bulk, giant = events_of(number, [3, 0, 5, 1, 2]), events_of(10 + number, [40])
            buckets = np.array([1, 0, 1, 0, 1])
            writer.hold(bulk, buckets)
            writer.write(giant, OUTLIERS, number)
            writer.hold(bulk.part(0, 2), buckets[:2])
            if number == 1:
                writer.forget()
                continue
            writer.keep()
            for events, numbers in ((bulk, buckets), (giant, [OUTLIERS]), (bulk.part(0, 2), buckets[:2])):
                starts = events.offsets()
                for index, (place, bucket) in enumerate(zip(places(events), numbers, strict=True)):
                    muons = events.items[starts[index] : starts[index + 1]]
                    expected.setdefault(int(bucket), []).append((place, muons.tolist()))
        blocks = writer.finish()
    with contextlib.closing(SpillReader(tmp_path, BUNDLES)) as reader:
        for bucket in range(BUCKETS):
            events = reader.read(segments_of(blocks, bucket, bucket + 1))
            starts = events.offsets()
            found = [
                (place, events.items[starts[index] : starts[index + 1]].tolist())
                for index, place in enumerate(places(events))
            ]
            assert sorted(found) == sorted(expected[bucket])
    assert [block.source for block in blocks if block.events[OUTLIERS] < block.events[BUCKETS]] == [0, 2, 3]
