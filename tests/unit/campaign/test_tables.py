import json

import pytest

from crpipe.campaign.records import table_paths
from crpipe.core.errors import DataError
from crpipe.core.files import sha256


@pytest.fixture
def record(tmp_path):
    """The record of one staged table."""
    copy = tmp_path / "tables" / "geometry.csv"
    copy.parent.mkdir()
    copy.write_text("0 1 2\n")
    row = {"uri": "file:///geometry.csv", "path": "tables/geometry.csv", "size": 6, "sha256": sha256(copy)}
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"geometry": row}))
    return path


def test_a_copy_that_is_missing_or_short_is_named(record):
    copy = record.parent / "tables" / "geometry.csv"
    copy.write_text("0")
    with pytest.raises(DataError, match=rf"{copy}: the copy of table geometry .* delete {record}"):
        table_paths(record)
    copy.unlink()
    with pytest.raises(DataError, match="missing or has another size"):
        table_paths(record)


@pytest.mark.parametrize(
    "content", ['{"geometry": {}}', '{"geometry": 5}', "[]", "5", '{"a": {"uri": 1, "path": 2}}']
)
def test_a_damaged_record_is_refused(record, content):
    record.write_text(content)
    with pytest.raises(DataError, match=rf"{record}: damaged \(.*\); delete it"):
        table_paths(record)
