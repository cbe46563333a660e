"""Spilled events come back from their buckets, whatever was flushed before a raw file turned out bad."""

import contextlib
import os

import numpy as np
import pytest

from crpipe.core.errors import DataError
from crpipe.events.batch import Events
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW
from crpipe.split import spill
from crpipe.split.spill import BlockTable, SpillReader, SpillWriter, remove_spans, span_count
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import make_events

BUCKETS = 3
OUTLIERS = "outliers"


def events_of(number, multiplicity):
    columns, multiplicity, items = make_events(np.array(multiplicity), seed=number)
    rows = np.arange(len(multiplicity), dtype=np.uint32)
    columns |= {SOURCE_FILE: np.full(len(rows), number, np.uint32), SOURCE_ROW: rows}
    return Events(columns, multiplicity.astype(np.uint32), items)


def places(events):
    return list(zip(events.columns[SOURCE_FILE].tolist(), events.columns[SOURCE_ROW].tolist(), strict=True))


@pytest.mark.parametrize("spans", [[0, 3], [0, 1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("held", [0, 100, 1 << 20])
def test_kept_events_come_back_and_forgotten_ones_do_not(tmp_path, monkeypatch, held, spans):
    monkeypatch.setattr(spill, "_BLOCK_BYTES", held)
    monkeypatch.setattr(spill, "_PIECE", 2)
    monkeypatch.setattr(spill, "_DIRTY", 200)
    expected = {}
    with contextlib.closing(SpillWriter(tmp_path, 0, BUNDLES, np.array(spans))) as writer:
        for number in range(4):
            bulk, giant = events_of(number, [3, 0, 5, 1, 2]), events_of(10 + number, [40])
            buckets = np.array([1, 0, 1, 0, 2])
            writer.hold(bulk, buckets)
            writer.write(giant, number, OUTLIERS)
            writer.hold(bulk.part(0, 2), buckets[:2])
            if number == 1:
                writer.forget()
                continue
            writer.keep()
            for events, numbers in ((bulk, buckets), (giant, [OUTLIERS]), (bulk.part(0, 2), buckets[:2])):
                for found, bucket in zip(known(events), numbers, strict=True):
                    expected.setdefault(bucket, []).append(found)
        blocks, outliers = writer.finish()
    table = BlockTable([blocks], np.array(spans))
    with contextlib.closing(SpillReader(tmp_path, BUNDLES)) as reader:
        for bucket in range(BUCKETS):
            events = reader.read(table.segments(bucket, bucket + 1))
            assert sorted(known(events)) == sorted(expected[bucket])
            counted = [each.tolist() for each in table.per_bucket(bucket, bucket + 1)]
            assert counted == [[len(events)], [len(events.items)]]
        segments = np.array([outlier.segment for outlier in outliers])
        found = [each for events in reader.one_by_one(segments) for each in known(events)]
        assert found == expected[OUTLIERS]
        assert len(reader.read(table.segments(0, 3))) == sum(map(len, expected.values())) - 3
    assert [outlier.source for outlier in outliers] == [0, 2, 3]


def known(events):
    """Return place and muons of each event."""
    starts = events.offsets()
    return [
        (place, events.items[starts[index] : starts[index + 1]].tolist())
        for index, place in enumerate(places(events))
    ]


def test_only_the_files_of_the_spans_before_are_removed(tmp_path):
    for number in range(2):
        with contextlib.closing(SpillWriter(tmp_path, number, BUNDLES, np.array([0, 1, 2, 3]))) as writer:
            writer.finish()
    remove_spans(tmp_path, 0)
    assert len([*tmp_path.iterdir()]) == 2 * 2 * 4
    remove_spans(tmp_path, 2)
    left = {path.name for path in tmp_path.iterdir()}
    kinds = ("events", "items")
    assert left == {f"000{number}.0{span}.{kind}" for number in (0, 1) for span in (2, 3) for kind in kinds}


@pytest.mark.parametrize(("gigabytes", "expected"), [(0, 1), (0.4, 1), (1, 3), (10**4, 64)])
def test_large_ranges_have_more_spans_up_to_the_files_that_may_be_open(gigabytes, expected):
    assert span_count(0, int(gigabytes * 1e9) // 12, BUNDLES) == expected


def test_a_file_that_lost_its_end_is_noticed(tmp_path):
    with contextlib.closing(SpillWriter(tmp_path, 0, BUNDLES, np.array([0, 1]))) as writer:
        writer.hold(events_of(0, [3, 4]), np.array([0, 0]))
        writer.keep()
        blocks, _ = writer.finish()
    (path,) = tmp_path.glob("*.00.items")
    os.truncate(path, 5)
    told = rf"{path}: damaged while the split ran; run the same command again"
    with contextlib.closing(SpillReader(tmp_path, BUNDLES)) as reader, pytest.raises(DataError, match=told):
        reader.read(BlockTable([blocks], np.array([0, 1])).segments(0, 1))
