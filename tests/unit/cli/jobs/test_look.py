"""What `crpipe plan` sees: sizes, one file through the reader, and what is wrong with it."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.cli.jobs import look as look_jobs
from crpipe.cli.jobs.look import look_at_source
from crpipe.cli.jobs.report import plan_job
from crpipe.cli.jobs.source import list_job
from crpipe.core.errors import SourceError
from crpipe.core.progress import Silent
from crpipe.report.plan.plan import render_plan
from crpipe.report.plan.volume import measure_volume
from crpipe.source.listing import list_range
from raw_files import campaign, make_events, nested, write_parquet

QUARANTINE = "source.on_bad_file=quarantine"
FIRST, SECOND = "0000000-0000009", "0000010-0000019"
KEYS = ("ranges.last=19", "ranges.step=10", "split.validation_fraction=0.05")


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
    job = plan_job(config, look_at_source(config))
    whole = sum(path.stat().st_size for path in raw.rglob("*.parquet"))
    assert measure_volume(job).bytes == whole
    file = job.seen.file
    assert (file.name, file.files, file.events, file.items) == (str(raw / FIRST / "1.parquet"), 6, 48, 396)
    # The threshold of the configuration is 20: one of four events is an outlier.
    assert (file.rows, file.largest, file.below) == (8, 2, 0.75)
    assert file.columns["muons"].startswith("list")


def test_ranges_that_are_listed_are_not_asked_for_again(configure):
    config = configure()
    list_range(list_job(config, FIRST), Silent())
    assert list(look_at_source(config).listed) == [SECOND]


def test_a_foreign_file_is_named_with_what_is_missing(configure, raw):
    for path in (raw / FIRST).iterdir():
        pq.write_table(pa.table({"a": [1]}), path)
    (problem,) = look_at_source(configure()).problems
    assert problem.startswith(f"{raw}/{FIRST}/1.parquet: no column muons, primary")


def test_files_of_no_bytes_are_named(configure, raw):
    for path in (raw / FIRST).iterdir():
        path.write_bytes(b"")
    (problem,) = look_at_source(configure()).problems
    assert "0 bytes" in problem


def test_a_reader_that_lacks_its_table_reads_nothing_yet(configure):
    config = configure("source.reader=crpipe.workloads.direction.reading.kaggle:SimulatedFiles")
    seen = look_at_source(config)
    assert not seen.problems
    assert "no file was read: source.tables: the table" in seen.notes[0]


def test_one_file_of_a_remote_source_is_copied_and_named_as_in_the_source(configure, raw, monkeypatch):
    remote = configure("source.uri=pelican://host/x/{range}/*.parquet")
    local = look_jobs.look(
        look_jobs.LookJob(
            look_jobs.SourcePattern(configure().source.uri, ""),
            configure().all_ranges(),
            1,
            0,
            look_jobs.source_options(configure()),
        )
    )
    monkeypatch.setattr(look_jobs, "look", lambda *_, **__: local)
    found = look_at_source(remote)
    assert (found.file.files, found.file.events) == (1, 4)
    (raw / FIRST / "0.parquet").write_bytes((raw / FIRST / "0.parquet").read_bytes()[:-1] + b"x")
    (problem,) = look_at_source(remote).problems
    assert problem == f"{raw}/{FIRST}/0.parquet: is no whole Parquet file"
    local.problems.clear()
    aside = look_at_source(configure("source.uri=pelican://host/x/{range}/*.parquet", QUARANTINE))
    assert (aside.warnings, aside.problems) == ((problem,), ())

    def missing(*_):
        raise SourceError("no answer")

    monkeypatch.setattr(look_jobs, "bring", missing)
    assert look_at_source(remote).notes == ("no file was read: no answer",)


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
    text = " ".join(render_plan(plan_job(config, look_at_source(config))).split())
    said = (
        "WARNING each row is a group of its own (primary_major_id, primary_minor_id), but rows share energy"
    )
    assert (said in text) == (numbered == "rows")
