import sys

import pytest
import yaml

from crpipe.campaign.raw_files import read_manifest
from crpipe.cli.app import main
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.journal import Journal
from crpipe.core.text import NullProgress
from crpipe.source import range_files
from crpipe.source.counting import check_source, count_files, ensure_counted
from crpipe.source.listing import list_range
from named import NAMED, SOURCE
from opened import opened
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
    ranges = {"first": 0, "last": "auto", "size": 10, **ranges}
    source = {"uri": uri, "files": files}
    return validate({"results": str(tmp_path / "results"), "ranges": ranges, "source": source})


def listed(config, name, progress=None):
    list_range(opened(config), name, progress or NullProgress())
    return [entry.path for entry in read_manifest(config.paths().manifest(name))]


def counted(config, progress=None):
    return count_files(opened(config), progress or NullProgress())


@pytest.mark.parametrize(
    ("uri", "first", "last", "name", "files"),
    [
        ("batch_{number}.parquet", 1, 25, "0000021-0000025", range(21, 26)),
        ("*.parquet", 0, 24, "0000020-0000024", range(21, 26)),
        ("*.parquet", 0, 24, "0000000-0000009", range(1, 11)),
    ],
)
def test_files_are_counted_and_cut_into_ranges(tmp_path, flat, monkeypatch, uri, first, last, name, files):
    monkeypatch.chdir(tmp_path)
    config = configured(tmp_path, f"flat/{uri}", first=first)
    assert counted(config) == last
    assert [(one.first, one.last) for one in config.all_ranges()] == [
        (begin, min(begin + 9, last)) for begin in range(first, last + 1, 10)
    ]
    assert listed(config, name) == sorted(f"batch_{number}.parquet" for number in files)


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
    assert any("warning: 1 file missing: batch_7.parquet" in line for line in told.lines)
    with pytest.raises(ListingError, match=r"1 of 10 files are missing in .*: batch_7\.parquet"):
        listed(config, "0000001-0000010", told)
    assert told.lines[-1].endswith(f"1 file in {flat} with other names: ignored")
    with pytest.raises(
        ListingError, match=r"10 of 10 .*batch_30\.parquet and 5 more \(numbers found: 1 to 25"
    ):
        listed(config, "0000026-0000035")


def test_one_list_is_cut_in_natural_order(tmp_path, flat):
    names = [f"flat/batch_{number}.parquet" for number in (10, 2, 1)]
    (tmp_path / "all.txt").write_text("\n".join(names))
    config = configured(tmp_path, "", str(tmp_path / "all.txt"), size=2)
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


def test_a_file_that_vanishes_during_the_listing_is_named(tmp_path, flat, monkeypatch):
    config = configured(tmp_path, f"{flat}/*.parquet", last=24)
    own, asked = range_files.entries_of, []

    def entries_of(*words):
        asked.append(words)
        if len(asked) > 1:
            (flat / "batch_3.parquet").unlink()
        return own(*words)

    monkeypatch.setattr(range_files, "entries_of", entries_of)
    with pytest.raises(ListingError, match=r"batch_3\.parquet: gone during the listing"):
        listed(config, "0000000-0000009")


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
    with pytest.raises(ConfigError, match=rf"ranges\.size: 10 from 0 on does not give range {odd}"):
        counted(configured(tmp_path, f"{tmp_path}/runs/{{range}}/*.h5"))


@pytest.mark.parametrize(
    ("uri", "files", "first", "error", "message"),
    [
        ("{flat}/*.h5", "", 0, ListingError, "no file there matches"),
        (
            "{flat}/x_{number}.h5",
            "",
            0,
            ListingError,
            r"nothing there matches, from number 0 \(ranges\.first\)",
        ),
        ("{flat}/batch_{number}.parquet", "", 26, ListingError, "nothing there matches, from number 26"),
        ("{flat}/{range}/*.h5", "", 0, ListingError, "nothing there matches"),
        ("{flat}/*.parquet", "", 25, ConfigError, r"ranges\.first: 25: the source holds files 0 to 24 only"),
        ("{flat}/absent/*.parquet", "", 0, ListingError, r"the source: .*/absent cannot be listed"),
        ("synthetic://", "", 0, ConfigError, r"ranges\.last: auto: .*set it to a number"),
        ("", "{range}.txt", 0, ConfigError, r"ranges\.last: auto: .*set it to a number"),
    ],
)
def test_what_cannot_be_counted_is_an_error(tmp_path, flat, uri, files, first, error, message):
    config = configured(tmp_path, uri.replace("{flat}", str(flat)), files, first=first)
    with pytest.raises(error, match=message):
        counted(config)


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
        ({"uri": "/data/*", "tables": {"g": "/g_*.csv"}}, r"source\.tables\.g: .*names one file"),
    ],
)
def test_an_impossible_source_is_an_error_before_any_job(source, message):
    with pytest.raises(ConfigError, match=message):
        check_source(validate({"source": source}))


def test_the_verb_prints_the_last_number_and_is_an_attempt(tmp_path, flat, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ranges = {"first": 1, "last": "auto", "size": 2}
    tree = {**NAMED, "source": {**SOURCE, "uri": "flat/batch_{number}.parquet"}, "ranges": ranges}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.setattr(sys, "argv", ["crpipe", "-c", "c.yaml", "count"])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code or 0, capsys.readouterr().out) == (0, "25\n")
    rows = Journal(tmp_path / "results" / "journal.jsonl").rows()
    assert [row["verb"] for row in rows if row["what"] == "finished"] == ["count"]
