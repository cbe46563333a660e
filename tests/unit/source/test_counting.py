import subprocess
import sys

import pytest
import yaml

from crpipe.campaign.raw_files import read_manifest
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.files import read_json
from crpipe.core.journal import Journal
from crpipe.core.text import NullProgress
from crpipe.source.counting import check_source, count_files, ensure_counted
from crpipe.source.listing import list_range
from named import NAMED, SOURCE
from opened import opened
from raw_files import write_parquet
from told import Told


@pytest.fixture
def flat(tmp_path):
    """A directory of 25 files, numbered from 1 without padding, and a file of another name."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for number in range(1, 26):
        (folder / f"batch_{number}.parquet").write_bytes(bytes(number))
    (folder / "notes.txt").write_text("notes")
    (folder / "batch_old.parquet").mkdir()
    return folder


def configured(tmp_path, uri, files="", **ranges):
    ranges = {"first": 0, "last": "auto", "step": 10, **ranges}
    source = {"uri": uri, "files": files}
    return validate({"results": str(tmp_path / "results"), "ranges": ranges, "source": source})


def listed(config, name):
    list_range(opened(config), name, NullProgress())
    return [entry.path for entry in read_manifest(config.paths().manifest(name))]


def counted(config, progress=None):
    return count_files(opened(config), progress or NullProgress())


def test_numbers_in_file_names_are_counted_and_cut_into_ranges(tmp_path, flat):
    config = configured(tmp_path, f"{flat}/batch_{{number}}.parquet", first=1)
    assert counted(config) == 25
    assert [str(name) for name in config.all_ranges()] == [
        "0000001-0000010",
        "0000011-0000020",
        "0000021-0000025",
    ]
    assert listed(config, "0000021-0000025") == [f"batch_{number}.parquet" for number in range(21, 26)]
    told = Told()
    list_range(opened(config), "0000001-0000010", told)
    assert told.lines[0].endswith("1 files in " + str(flat) + " have other names and are ignored")


def test_padded_numbers_are_found_by_their_padded_names(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:06d}.h5").write_text("x")
    config = configured(tmp_path, f"{tmp_path}/{{number:06}}.h5")
    assert counted(config) == 11
    assert listed(config, "0000010-0000011") == ["000010.h5", "000011.h5"]


def test_missing_numbers_are_named(tmp_path, flat):
    (flat / "batch_7.parquet").unlink()
    config = configured(tmp_path, f"{flat}/batch_{{number}}.parquet", first=1)
    told = Told()
    counted(config, told)
    assert any("warning: 1 files are missing: batch_7.parquet" in line for line in told.lines)
    with pytest.raises(ListingError, match=r"1 of 10 files are missing in .*: batch_7\.parquet"):
        listed(config, "0000001-0000010")
    with pytest.raises(
        ListingError, match=r"10 of 10 .*batch_30\.parquet and 5 more \(numbers found: 1 to 25"
    ):
        listed(config, "0000026-0000035")


def test_a_flat_directory_is_cut_in_natural_order(tmp_path, flat):
    config = configured(tmp_path, f"{flat}/*.parquet")
    assert counted(config) == 24
    assert listed(config, "0000000-0000009") == sorted(f"batch_{number}.parquet" for number in range(1, 11))
    assert listed(config, "0000020-0000024") == [f"batch_{number}.parquet" for number in range(21, 26)]


def test_a_relative_path_is_a_source(tmp_path, flat, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configured(tmp_path, "flat/*.parquet")
    assert counted(config) == 24
    assert len(listed(config, "0000010-0000019")) == 10


def test_one_list_is_cut_in_natural_order(tmp_path, flat):
    names = [f"flat/batch_{number}.parquet" for number in (10, 2, 1)]
    (tmp_path / "all.txt").write_text("\n".join(names))
    config = configured(tmp_path, "", str(tmp_path / "all.txt"), step=2)
    assert counted(config) == 2
    assert listed(config, "0000000-0000001") == ["batch_1.parquet", "batch_2.parquet"]
    assert listed(config, "0000002-0000002") == ["batch_10.parquet"]


def test_a_last_number_may_be_given_and_the_last_range_be_shorter(tmp_path, flat):
    config = configured(tmp_path, f"{flat}/*.parquet", last=24)
    assert str(config.all_ranges()[-1]) == "0000020-0000024"
    assert len(listed(config, "0000020-0000024")) == 5
    assert config.paths().positions().exists()
    wrong = configured(tmp_path, f"{flat}/*.parquet", last=29)
    with pytest.raises(ListingError, match=r"holds 25 files, numbers 0 to 24; set ranges\.last to 24"):
        listed(wrong, "0000020-0000029")


@pytest.mark.parametrize("pattern", ["*.parquet", "batch_{number}.parquet"])
def test_positions_never_shift(tmp_path, flat, pattern):
    config = configured(tmp_path, f"{flat}/{pattern}", first=1)
    counted(config)
    (flat / "batch_0.parquet").write_text("new")
    (flat / "batch_25.parquet").unlink()
    with pytest.raises(ListingError, match=r"(?s)no longer the files that .*gone"):
        counted(config)
    if pattern == "*.parquet":
        with pytest.raises(ListingError, match=r"batch_25\.parquet: gone\n  batch_0\.parquet: new"):
            listed(config, "0000001-0000010")


def test_range_directories_are_counted(tmp_path):
    for name in ("0000000-0000009", "0000010-0000019", "0000020-0000023", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    config = configured(tmp_path, f"{tmp_path}/runs/{{range}}/*.h5")
    assert counted(config) == 23
    assert [str(name) for name in config.all_ranges()][-1] == "0000020-0000023"


@pytest.mark.parametrize("odd", ["0000010-0000014", "0000005-0000014", "0000000-0000099"])
def test_range_directories_that_do_not_fit_are_named(tmp_path, odd):
    for name in (odd, "0000020-0000029"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"ranges\.step: 10 from 0 on does not give range {odd}"):
        counted(configured(tmp_path, f"{tmp_path}/runs/{{range}}/*.h5"))


@pytest.mark.parametrize(
    ("pattern", "ranges", "error", "message"),
    [
        ("*.h5", {}, ListingError, "no file there matches"),
        ("x_{number}.h5", {}, ListingError, r"nothing there matches, from number 0 \(ranges\.first\) on"),
        ("{range}/*.h5", {}, ListingError, "nothing there matches"),
        ("*.parquet", {"first": 30}, ConfigError, r"ranges\.first: 30: the source holds files 0 to 24 only"),
        ("absent/*.parquet", {}, ListingError, r"the source: .*/absent cannot be listed"),
    ],
)
def test_nothing_to_count_is_an_error(tmp_path, flat, pattern, ranges, error, message):
    with pytest.raises(error, match=message):
        counted(configured(tmp_path, f"{flat}/{pattern}", **ranges))


@pytest.mark.parametrize(("uri", "files"), [("synthetic://", ""), ("", "{range}.txt")])
def test_a_source_without_an_end_cannot_be_counted(tmp_path, uri, files):
    with pytest.raises(ConfigError, match=r"ranges\.last: auto: .*set it to a number"):
        counted(configured(tmp_path, uri, files))


def test_a_workflow_counts_once_and_only_where_it_is_asked_to(tmp_path, flat):
    config = configured(tmp_path, f"{flat}/*.parquet")
    ensure_counted(opened(config), NullProgress())
    ensure_counted(opened(config), NullProgress())
    ensure_counted(opened(configured(tmp_path / "other", f"{flat}/*.parquet", last=24)), NullProgress())
    whats = [(row["what"], row["verb"]) for row in Journal(config.paths().data_journal()).rows()]
    assert whats == [("start", "count"), ("finished", "count")]
    assert not (tmp_path / "other").exists()


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
