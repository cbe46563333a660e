import pyarrow.parquet as pq

from crpipe.config.loading import validate
from crpipe.core.progress import Silent
from crpipe.core.raw_files import read_manifest
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range


def campaign(folder):
    small = {"files_per_range": 3, "showers_per_file": 2, "depths": 2, "energy_max_gev": 1e5}
    return validate(
        {
            "results": str(folder),
            "ranges": {"last": 999},
            "source": {"uri": "synthetic://"},
            "synthetic": small,
        }
    )


def test_sizes_are_unknown_until_the_files_are_made(tmp_path, name):
    config = campaign(tmp_path)
    list_range(config, name, Silent())
    entries = read_manifest(config.paths().manifest(str(name)))
    assert [(entry.size, entry.mtime) for entry in entries] == [(None, None)] * 3
    stage_range(config, name, Silent())
    rows = pq.read_table(config.paths().staged(str(name))).to_pylist()
    raw = config.paths().raw(str(name))
    assert [row["size"] for row in rows] == [(raw / row["path"]).stat().st_size for row in rows]
    assert {row["verified"] for row in rows} == {"generated"}


def test_two_campaigns_make_the_same_bytes(tmp_path, name):
    tables = []
    for folder in ("one", "two"):
        config = campaign(tmp_path / folder)
        list_range(config, name, Silent())
        stage_range(config, name, Silent())
        tables.append(pq.read_table(config.paths().staged(str(name))))
    assert tables[0].equals(tables[1])
