import multiprocessing
import os
import signal
import time
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.raw_files import lease_folder, read_manifest, write_manifest
from crpipe.core.errors import (
    ChangedError,
    DataError,
    DiskError,
    FormatError,
    LeaseError,
    ListingError,
    SourceError,
)
from crpipe.core.lease import lease
from crpipe.core.text import NullProgress
from crpipe.source.copies import Copies
from crpipe.source.stage import stage_range
from damage import flip
from named import READERS
from opened import listed, opened, staged
from told import Told


@pytest.fixture
def configure(configure):
    """Make a configuration whose files are copied; those that are read in place are in test_in_place.py."""
    return partial(configure, copy_local=True)


def assert_identical(config, name, tree):
    raw = config.paths().raw(str(name))
    for file in (tree / str(name)).glob("*.bin"):
        assert (raw / file.name).read_bytes() == file.read_bytes()


def test_every_file_is_copied_and_its_checksum_compared(configure, name, tree):
    config = configure()
    rows = [*staged(config, name).values()]
    assert_identical(config, name, tree)
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    assert {(row["state"], row["reason"], row["algorithm"], row["verified"]) for row in rows} == {
        ("staged", "", "crc32c", "copy-compare")
    }
    assert rows[0]["checksum"] == "527d5351"  # crc32c of one zero byte
    assert not list(config.paths().raw(str(name)).glob("*.part"))


def test_staging_without_a_manifest_says_what_to_run(configure, name):
    with pytest.raises(DataError, match=f"crpipe list {name}"):
        stage_range(opened(configure()), str(name), NullProgress())


def test_verified_copies_are_not_made_again(configure, name):
    config = configure()
    first = staged(config, name)
    raw = config.paths().raw(str(name))
    before = {file.name: file.stat().st_ino for file in raw.glob("*.bin")}
    told = Told()
    assert staged(config, name, told) == first
    assert {file.name: file.stat().st_ino for file in raw.glob("*.bin")} == before
    assert told.lines[0] == f"{name}: 12 of 12 files are here already, verified again"


def test_a_copy_that_was_damaged_meanwhile_is_made_again(configure, name, tree):
    config = configure()
    staged(config, name)
    raw = config.paths().raw(str(name))
    flip(raw / "part-0005.bin")
    (raw / "part-0006.bin").write_bytes(b"short")
    (raw / "part-0007.bin").unlink()
    told = Told()
    staged(config, name, told)
    assert told.lines[0].startswith(f"{name}: 9 of 12")
    assert_identical(config, name, tree)


def test_a_file_made_anew_in_the_same_size_is_copied_once_its_range_is_listed_again(configure, name, tree):
    config = configure()
    staged(config, name)
    source = tree / str(name) / "part-0005.bin"
    source.write_bytes(bytes(reversed(source.read_bytes())))
    os.utime(source, (2e9, 2e9))
    config.paths().manifest(str(name)).unlink()
    told = Told()
    staged(config, name, told)
    assert told.lines[0].startswith(f"{name}: 11 of 12")
    assert_identical(config, name, tree)


@pytest.mark.parametrize("on_bad_file", ["fail", "quarantine"])
def test_a_file_replaced_in_the_same_size_is_refused_and_never_set_aside(configure, name, tree, on_bad_file):
    config = configure(on_bad_file=on_bad_file, max_quarantined=6)
    listed(config, name)
    file = tree / str(name) / "part-0003.bin"
    file.write_bytes(bytes(reversed(file.read_bytes())))
    os.utime(file, (2e9, 2e9))
    manifest = config.paths().manifest(str(name))
    with pytest.raises(ChangedError, match=rf"2033-.* it changed; .*rm {manifest}; crpipe list {name}$"):
        stage_range(opened(config), str(name), NullProgress())
    assert not config.paths().staged(str(name)).exists()
    manifest.unlink()
    staged(config, name)
    assert_identical(config, name, tree)


def test_a_bad_file_can_be_set_aside_with_its_reason(configure, name, tree):
    config = configure(on_bad_file="quarantine", max_quarantined=1)
    listed(config, name)
    (tree / str(name) / "part-0003.bin").unlink()
    rows = staged(config, name)
    bad = rows.pop("part-0003.bin")
    assert (bad["path"], bad["state"], bad["checksum"], bad["size"]) == (
        "part-0003.bin",
        "quarantined",
        "",
        3001,
    )
    assert "No such file" in bad["reason"]
    assert {row["state"] for row in rows.values()} == {"staged"}
    assert not (config.paths().raw(str(name)) / "part-0003.bin").exists()


def test_too_many_bad_files_fail_the_range(configure, name, tree):
    config = configure(on_bad_file="quarantine", max_quarantined=1)
    listed(config, name)
    for index in (3, 4):
        (tree / str(name) / f"part-{index:04d}.bin").unlink()
    with pytest.raises(SourceError, match=rf"range {name}: 2 bad files, at most 1"):
        stage_range(opened(config), str(name), NullProgress())


def test_a_budget_that_is_too_small_is_told_before_the_first_byte(configure, name):
    config = configure(disk_budget_gib=1e-5)
    with pytest.raises(
        DiskError, match=r"range .* needed, raw copies already take .*source\.disk_budget_gib"
    ):
        staged(config, name)
    assert not list(config.paths().raw(str(name)).glob("*.bin*"))


def test_other_ranges_count_towards_the_budget(configure, name):
    config = configure(disk_budget_gib=1e-4)  # 107 kB: the range of 66 kB fits alone
    other = config.paths().raw("0001000-0001999")
    other.mkdir(parents=True)
    (other / "big").write_bytes(b"x" * 50_000)
    with pytest.raises(DiskError, match="raise the budget"):
        staged(config, name)
    (other / "big").unlink()
    assert len(staged(config, name)) == 12


def test_two_jobs_never_stage_one_range_at_once(configure, name):
    config = configure()
    listed(config, name)
    with (
        lease(lease_folder(config.paths().raw(str(name))), wait_s=0, say=str),
        pytest.raises(LeaseError, match=f"process {os.getpid()}"),
    ):
        stage_range(opened(config), str(name), NullProgress())


def test_a_killed_job_resumes_and_loses_at_most_what_was_in_flight(configure, name, tree):
    folder = tree / str(name)
    for index in range(100, 400):
        (folder / f"part-{index:04d}.bin").write_bytes(os.urandom(20_000))
    config = configure(concurrency=2)
    listed(config, name)
    job = multiprocessing.get_context("fork").Process(
        target=stage_range, args=(opened(config), str(name), NullProgress())
    )
    job.start()
    raw = config.paths().raw(str(name))
    while len(list(raw.glob("*.bin"))) < 20:
        time.sleep(0.001)
    os.kill(job.pid, signal.SIGKILL)
    job.join()
    copied = len(list(raw.glob("*.bin")))
    told = Told()
    rows = staged(config, name, told)
    kept = int(told.lines[0].split()[1])
    assert copied - 4 <= kept <= copied < 312
    assert len(rows) == 312
    assert_identical(config, name, tree)
    assert not list(raw.glob("*.part"))


def test_a_link_in_the_place_of_a_range_s_directory_is_refused(configure, name, tmp_path):
    """Another user who may write into results/staged could have things written and deleted elsewhere."""
    config = configure()
    listed(config, name)
    home = tmp_path / "home"
    home.mkdir()
    (home / "download.part").write_text("of another program")
    raw = config.paths().raw(str(name))
    raw.parent.mkdir(parents=True, exist_ok=True)
    raw.symlink_to(home)
    with pytest.raises(DiskError, match=f"{raw}: a link.* remove it"):
        staged(config, name)
    assert [path.name for path in home.iterdir()] == ["download.part"]
    raw.unlink()
    staged(config, name)


def foreign(tree, name, count=6):
    """Files of another schema, beside those of the tree."""
    for number in range(count):
        pq.write_table(pa.table({"other": [number]}), tree / str(name) / f"f{number}.parquet")
    return f"{tree}/{{range}}/*.parquet"


def test_a_foreign_schema_is_found_at_the_first_copy(configure, name, tree):
    """The bytes are right: they stay, and are used when the reader is corrected."""
    keys = {"uri": foreign(tree, name), "concurrency": 1}
    config = configure(reader=READERS["bundles"], **keys)
    for _ in range(2):
        with pytest.raises(FormatError, match=r"f0\.parquet: no column muons, primary.*docs/workload"):
            staged(config, name)
        assert [path.name for path in config.paths().raw(str(name)).glob("*.parquet")] == ["f0.parquet"]
    assert len(staged(configure(**keys), name)) == 6


def test_a_foreign_file_may_be_set_aside_by_the_split(configure, name, tree):
    config = configure(reader=READERS["bundles"], uri=foreign(tree, name), on_bad_file="quarantine")
    assert len(staged(config, name)) == 6


def short_manifest(config, name, keep):
    """Leave the manifest that a listing of some of the files would have made: it looks like any other."""
    listed(config, name)
    path = config.paths().manifest(str(name))
    write_manifest(path, read_manifest(path)[:keep])
    return path


def test_a_listing_that_lacked_files_is_found_when_the_range_is_staged(configure, name, tree):
    config = configure()
    manifest = short_manifest(config, name, 4)
    with pytest.raises(ListingError, match=r"listed a second time, the source is not what") as caught:
        stage_range(opened(config), str(name), NullProgress())
    assert "part-0004.bin: new" in str(caught.value)
    assert "… and 3 more" in str(caught.value)
    assert f"rm {manifest}; crpipe list {name}" in str(caught.value)
    assert not config.paths().staged(str(name)).exists()
    manifest.unlink()
    told = Told()
    assert len(staged(config, name, told)) == 12
    assert told.lines[0].startswith(f"{name}: 4 of 12 files are here already")
    assert_identical(config, name, tree)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda folder: (folder / "part-0012.bin").write_bytes(b"late"), "part-0012.bin: new"),
        (lambda folder: (folder / "part-0003.bin").unlink(), "part-0003.bin: gone"),
        (
            lambda folder: (folder / "part-0003.bin").write_bytes(b"s"),
            "part-0003.bin: 3001 bytes before, 1 now",
        ),
        (lambda folder: os.utime(folder / "part-0003.bin", (2e9, 2e9)), "part-0003.bin: last written"),
    ],
)
def test_a_source_that_changes_after_its_files_were_copied_is_refused(
    configure, name, tree, monkeypatch, change, line
):
    config = configure()
    run = Copies.run

    def run_and_change(copies):
        run(copies)
        change(tree / str(name))

    listed(config, name)
    monkeypatch.setattr(Copies, "run", run_and_change)
    with pytest.raises(ListingError, match=line):
        stage_range(opened(config), str(name), NullProgress())
    assert not config.paths().staged(str(name)).exists()


def test_of_some_files_of_a_range_only_those_are_compared(configure, name, tree):
    config = configure(max_files=3)
    listed(config, name)
    (tree / str(name) / "part-0012.bin").write_bytes(b"late")
    assert len(staged(config, name)) == 3
    (tree / str(name) / "part-0000b.bin").write_bytes(b"among the first")
    with pytest.raises(ListingError, match="part-0000b.bin: new"):
        stage_range(opened(config), str(name), NullProgress())


@pytest.mark.parametrize("pattern", ["part-{number:04}.bin", "*.bin"])
def test_numbered_files_are_listed_a_second_time_too(configure, tree, name, pattern):
    config = configure(uri=f"{tree}/{name}/{pattern}")
    config = config.model_copy(update={"ranges": config.ranges.model_copy(update={"last": 11, "size": 12})})
    only = str(config.all_ranges()[0])
    short_manifest(config, only, 5)
    with pytest.raises(ListingError, match=r"part-0005\.bin: new"):
        stage_range(opened(config), only, NullProgress())
