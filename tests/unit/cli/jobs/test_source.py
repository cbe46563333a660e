import subprocess
import sys

import pytest
import yaml

from crpipe.cli.jobs.source import check_source, source_options, tables_job, token_uris
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json
from crpipe.core.journal import Journal
from named import NAMED, SIMULATOR, SOURCE
from raw_files import write_parquet


def test_the_simulator_s_options_are_handed_down_only_where_it_is_used():
    config = validate({"source": {**SOURCE, "deadline_minutes": 2}, "seed": 7})
    options = source_options(config)
    assert (options.simulator, options.seed, options.deadline_s) == (SIMULATOR, 7, 120)
    assert options.simulator_options == config.options("simulator")
    other = validate({"source": {**SOURCE, "uri": "/data/{range}/*.h5"}})
    assert source_options(other).simulator_options == {}


def test_the_copies_of_tables_are_beside_their_record(tmp_path):
    job = tables_job(validate({"results": str(tmp_path), "source": {"tables": {"a": "/a.csv"}}}))
    assert (job.record, job.folder) == (tmp_path / "tables.json", tmp_path / "tables")
    assert not job.simulated


def test_a_token_may_be_needed_for_files_and_tables(tmp_path):
    (tmp_path / "all.txt").write_text("pelican://h/a/x.h5\npelican://h/b/y.h5\n")
    source = {"uri": "/unused", "files": str(tmp_path / "all.txt"), "tables": {"g": "osdf:///g.csv"}}
    assert token_uris(validate({"source": source})) == (
        "pelican://h/a/x.h5",
        "pelican://h/b/y.h5",
        "osdf:///g.csv",
    )
    assert token_uris(validate({"source": {"uri": "/data/{range}/*"}})) == ("/data/{range}/*",)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"uri": ""}, r"source\.uri: not set"),
        ({"uri": "/data/{rnge}/*"}, r"did you mean \{range\}"),
        ({"uri": "synthetic://air"}, "write synthetic:// alone"),
        ({"uri": "/data/*", "tables": {"g": "/g_*.csv"}}, r"source\.tables\.g: .*names one file"),
    ],
)
def test_an_impossible_source_is_an_error_before_any_job(source, message):
    with pytest.raises(ConfigError, match=message):
        check_source(validate({"source": source}))


def test_count_tables_list_and_stage_are_verbs_with_a_journal(tmp_path):
    (tmp_path / "flat").mkdir()
    for number in (1, 2, 3):
        write_parquet(tmp_path / "flat" / f"batch_{number}.parquet", [1])
    (tmp_path / "geometry.csv").write_text("id\n")
    tree = {
        **NAMED,
        "source": {
            "uri": "flat/batch_{number}.parquet",
            "reader": SOURCE["reader"],
            "tables": {"geometry": "geometry.csv"},
        },
        "ranges": {"first": 1, "last": "auto", "step": 2},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    shown = []
    for words in (["count"], ["tables"], ["list", "0000003-0000003"], ["stage", "0000003-0000003"]):
        code = "from crpipe.cli.app import main; main()"
        command = [sys.executable, "-c", code, "-c", "c.yaml", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == "3\n"
    results = tmp_path / "results"
    assert read_json(results / "positions.json")["last"] == 3
    assert set(read_json(results / "tables.json")) == {"geometry"}
    assert (results / "staged" / "0000003-0000003" / "batch_3.parquet").exists()
    finished = [row["verb"] for row in Journal(results / "journal.jsonl").rows() if row["what"] == "finished"]
    assert finished == ["count", "tables", "list", "stage"]
