"""The record of a finished split."""

from pathlib import Path

from crpipe.campaign.split_record import BULK_SHARDS, FILES, OUTLIER_SHARDS, SplitRecord
from crpipe.core.files import write_json
from crpipe.events.shard_records import ShardManifest


def test_a_finished_range_is_not_taken_for_unfinished_by_a_name_that_is_seen_late(tmp_path, monkeypatch):
    record = SplitRecord("0", tmp_path / "list", tmp_path / "shards", tmp_path / "outliers", tmp_path / "l")
    record.folder.mkdir(parents=True)
    for name in FILES:
        write_json(record.folder / name, {})
    for name in (BULK_SHARDS, OUTLIER_SHARDS):
        ShardManifest(range="0", data="", shards=()).write(record.folder / name)
    exists, asked = Path.exists, []

    def late(path):
        asked.append(path)
        return len(asked) > 1 and exists(path)

    monkeypatch.setattr(Path, "exists", late)
    assert record.is_whole()
    (record.folder / FILES[0]).unlink()
    assert not record.is_whole()
