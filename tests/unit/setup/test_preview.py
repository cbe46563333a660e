"""What `crpipe plan` sees: sizes, one file through the reader, and what is wrong with it."""

import errno

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import SourceError
from crpipe.core.text import NullProgress
from crpipe.report.plan import Plan, render_plan
from crpipe.setup import preview
from crpipe.setup.compatibility import planned_workload
from crpipe.setup.preview import look_at_source
from crpipe.source.listing import list_range
from raw_files import campaign, make_events, nested, write_parquet

QUARANTINE = "source.on_bad_file=quarantine"
MUONS = pa.list_(pa.list_(pa.float32()))
FIRST, SECOND = "0000000-0000009", "0000010-0000019"
KEYS = ("ranges.last=19", "ranges.size=10", "split.validation_fraction=0.05")


def planned(config):
    opened = Campaign.open(config)
    return Plan.of(opened, planned_workload(config), look_at_source(opened))


@pytest.fixture
def raw(tmp_path):
    for place, name in enumerate((FIRST, SECOND)):
        (tmp_path / "raw" / name).mkdir(parents=True)
        for file in range(3):
            write_parquet(tmp_path / "raw" / name / f"{file}.parquet", [2, 0, 30, 1] * (file + 1), place)
    return tmp_path / "raw"


@pytest.fixture
def configure(tmp_path, raw):
    def make(*keys):
        return campaign(tmp_path, f"source.uri={raw}/{{range}}/*.parquet", *KEYS, *keys)

    return make


def test_sizes_are_those_of_the_files_and_events_those_inside(configure, raw):
    config = configure()
    plan = planned(config)
    whole = sum(path.stat().st_size for path in raw.rglob("*.parquet"))
    assert plan.volume.bytes == whole
    file = plan.seen.file
    assert (file.name, file.files, file.events, file.items) == (str(raw / FIRST / "1.parquet"), 6, 48, 396)
    # The threshold of the configuration is 20: one of four events is an outlier.
    assert (file.rows, file.largest, file.below) == (8, 2, 0.75)
    assert file.columns["muons"].startswith("list")


def test_ranges_that_are_listed_are_not_asked_for_again(configure):
    config = configure()
    list_range(Campaign.open(config), FIRST, NullProgress())
    assert list(look_at_source(Campaign.open(config)).listed) == [SECOND]


def test_a_foreign_file_is_named_with_what_is_missing(configure, raw):
    for path in (raw / FIRST).iterdir():
        pq.write_table(pa.table({"a": [1]}), path)
    (problem,) = look_at_source(Campaign.open(configure())).problems
    assert problem.startswith(f"{raw}/{FIRST}/1.parquet: no column muons, primary")


def test_files_of_no_bytes_are_named(configure, raw):
    for path in (raw / FIRST).iterdir():
        path.write_bytes(b"")
    (problem,) = look_at_source(Campaign.open(configure())).problems
    assert "0 bytes" in problem


def test_a_reader_that_lacks_its_table_reads_nothing_yet(configure):
    config = configure("source.reader=crpipe.workloads.direction.reading.kaggle:SimulatedFiles")
    seen = look_at_source(Campaign.open(config))
    assert not seen.problems
    assert "no file was read: source.tables: the table" in seen.notes[0]


def test_a_side_table_that_is_not_there_is_named_and_no_raw_file_blamed(configure, tmp_path):
    config = configure(
        "source.reader=crpipe.workloads.xec.reading.root:RootFiles",
        "reader.sensors=true",
        f"source.tables.sensors={tmp_path}/sensor.csv",
    )
    (problem,) = look_at_source(Campaign.open(config)).problems
    assert problem.startswith(f"{tmp_path}/sensor.csv: cannot be looked up (No such file or directory)")


def test_one_file_of_a_remote_source_is_copied_and_named_as_in_the_source(configure, raw, monkeypatch):
    remote = configure("source.uri=pelican://host/x/{range}/*.parquet")
    local, list_now = configure(), preview.list_now
    monkeypatch.setattr(preview, "list_now", lambda _, ranges, **__: list_now(local, ranges))
    found = look_at_source(Campaign.open(remote))
    assert (found.file.files, found.file.events) == (1, 4)
    (raw / FIRST / "0.parquet").write_bytes((raw / FIRST / "0.parquet").read_bytes()[:-1] + b"x")
    (problem,) = look_at_source(Campaign.open(remote)).problems
    assert problem == f"{raw}/{FIRST}/0.parquet: is no whole Parquet file"
    aside = look_at_source(
        Campaign.open(configure("source.uri=pelican://host/x/{range}/*.parquet", QUARANTINE))
    )
    assert (aside.warnings, aside.problems) == ((problem,), ())
    pq.write_table(pa.table({"a": [1]}), raw / FIRST / "0.parquet")
    (problem,) = look_at_source(Campaign.open(remote)).problems
    assert problem.startswith(f"{raw}/{FIRST}/0.parquet: no column muons")

    def missing(*_):
        raise SourceError("no answer")

    monkeypatch.setattr(preview, "fetch_sample", missing)
    assert look_at_source(Campaign.open(remote)).notes == ("no file was read: no answer",)


def test_the_values_of_each_column_are_shown_and_doubted(configure, raw):
    lines = render_plan(planned(configure())).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("values"))
    assert lines[first].split()[1:6] == ["column", "1", "%", "50", "%"]
    names = [line.split()[0] for line in lines[first + 1 : first + 10]]
    assert names[:2] == ["primary_major_id", "primary_minor_id"]
    assert names[6:] == ["muons.energy_gev", "muons.x_m", "muons.y_m"]
    assert not planned(configure()).seen.file.doubts
    for path in raw.rglob("*.parquet"):
        table = pq.read_table(path)
        padded = pa.array([row + [[0.0, 0.0, 0.0]] * 3 for row in table["muons"].to_pylist()], MUONS)
        pq.write_table(table.set_column(table.schema.get_field_index("muons"), "muons", padded), path)
    plan = planned(configure())
    assert any("of the muons are 0 in every column" in warning for warning in plan.warnings())
    assert "muons are 0 in every column" in " ".join(render_plan(plan).split())


def test_illegal_values_are_found_before_the_split(configure, raw):
    for path in (raw / FIRST).iterdir():
        table = pq.read_table(path)
        degrees = [[row[0], 32.5, *row[2:]] for row in table["primary"].to_pylist()]
        primary = pa.array(degrees, pa.list_(pa.float32()))
        pq.write_table(table.set_column(table.schema.get_field_index("primary"), "primary", primary), path)
    (problem,) = look_at_source(Campaign.open(configure())).problems
    assert "1.parquet: row 0: zenith_rad is 32.5" in problem
    assert "8 of the 8 events that were read are illegal" in problem
    assert "split.on_bad_event: reject" in problem
    rejected = look_at_source(Campaign.open(configure("split.on_bad_event=reject")))
    assert rejected.problems == ()
    assert "8 of the 8 events" in rejected.warnings[0]
    assert rejected.file is not None


def test_what_is_converted_or_not_read_is_said_once(configure, raw):
    for path in raw.rglob("*.parquet"):
        table = pq.read_table(path).append_column("weight", pa.array([1.0] * pq.read_metadata(path).num_rows))
        place = table.schema.get_field_index("primary_major_id")
        ids = table["primary_major_id"].cast(pa.int64())
        pq.write_table(table.set_column(place, "primary_major_id", ids), path)
    config = configure()
    text = render_plan(planned(config))
    for note in ("column primary_major_id: int64 is read as uint64", "columns that are not read: weight"):
        assert text.count(note) == 1


def test_a_file_that_may_not_be_read_is_not_called_damaged(configure, monkeypatch):
    """Whoever runs tests as root may read all: the system's answer is given in its place."""

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    (problem,) = look_at_source(Campaign.open(configure())).problems
    assert "permission denied" in problem
    assert "chmod" in problem
    assert "damaged" not in problem


@pytest.mark.parametrize("numbered", ["rows", "things"])
def test_group_columns_that_number_the_rows_are_warned_of(configure, raw, numbered):
    for path in raw.rglob("*.parquet"):
        columns, multiplicity, items = make_events([1] * 60)
        number = np.arange(60) if numbered == "rows" else np.arange(60) // 5
        columns["primary_minor_id"] = number.astype(np.uint64)
        for name in ("energy_gev", "zenith_rad"):
            columns[name] = np.repeat(columns[name][::5], 5)
        pq.write_table(nested(columns, multiplicity, items), path)
    config = configure()
    text = " ".join(render_plan(planned(config)).split())
    said = (
        "WARNING each row is a group of its own (primary_major_id, primary_minor_id), but rows share energy"
    )
    assert (said in text) == (numbered == "rows")
