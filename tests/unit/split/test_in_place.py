"""Raw files of this machine are read where they are: once, unchanged, to the products of verified copies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.ledger import Ledger
from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.raw_proofs import identity
from crpipe.core import checksums
from crpipe.core.errors import DataError, FormatError, SourceError
from crpipe.core.files import sha256, tree_bytes
from crpipe.core.lease import Mount
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.local import _keeps_inodes
from crpipe.source.stage import stage_range
from crpipe.split import scatter
from crpipe.split.split import split_range
from opened import listed, opened
from raw_files import NAME, campaign, product_bytes, split, write_hdf5, write_parquet
from told import Told

FILES = ([0, 3, 25, 1, 0, 2] * 20, [5] * 40, [100, 1, 0, 21, 20])
SUPPORT = Path(__file__).parents[2] / "support"


def snapshot(folder):
    """Return which files a folder holds, when they changed, and their bytes."""
    return {path.name: (identity(path.lstat()), sha256(path)) for path in sorted(folder.iterdir())}


def staged(root, raw, *overrides):
    """List and stage the one range of a campaign."""
    config = campaign(root, f"source.uri={raw.parent}/{{range}}/*.*", *overrides)
    for work in (list_range, stage_range):
        work(opened(config), NAME, NullProgress())
    return config


def made(root, raw, *overrides):
    """List, stage and split it; return the bytes of all products, and of the listing."""
    config = staged(root, raw, *overrides)
    split(config)
    paths = config.paths()
    assert not paths.raw(NAME).exists()
    assert [path.name for path in paths.shards(NAME).glob(".*")] == [".finished"]
    return {**product_bytes(config), "listing": paths.manifest(NAME).read_bytes()}


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw" / NAME
    folder.mkdir(parents=True)
    for seed, multiplicity in enumerate(FILES):
        write_parquet(folder / f"{seed}.parquet", multiplicity, seed=seed)
    return folder


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 4)
    path.write_bytes(data)


def test_products_are_those_of_copies_and_nothing_is_copied(tmp_path, raw):
    (raw / "3.parquet").symlink_to(write_parquet(tmp_path / "elsewhere.parquet", [7, 1], seed=3))
    (raw / "4.parquet").hardlink_to(write_parquet(tmp_path / "linked.parquet", [7, 2], seed=4))
    before = snapshot(raw)
    config = staged(tmp_path / "here", raw)
    assert tree_bytes(config.paths().raw(NAME)) < 10_000  # journals of the staging
    assert {path.is_symlink() for path in config.paths().raw(NAME).glob("*.parquet")} == {True}
    ours = made(tmp_path / "here", raw)
    assert ours == made(tmp_path / "copied", raw, "source.copy_local=true")
    ledger = Ledger.read(config.paths().ledger(NAME))
    assert {(row.algorithm, row.verified, len(row.checksum)) for row in ledger.files} == {
        ("crc32c", "copy-compare", 8)
    }
    assert snapshot(raw) == before


@pytest.mark.parametrize("cpus", [1, 2])
def test_bad_files_are_set_aside_as_copies_of_them_are(tmp_path, raw, cpus, monkeypatch):
    monkeypatch.setattr("crpipe.split.split._WORKER_RAW", 1)  # so that there are workers
    damage(raw / "1.parquet")
    (raw / "3.parquet").write_bytes(b"PAR1 and no more")
    (raw / "4.parquet").write_bytes(b"PAR1\0\0\0\0\xff\0\0\0PAR1")
    before = snapshot(raw)
    keys = ("source.on_bad_file=quarantine", f"resources.split.cpus={cpus}")
    ours = made(tmp_path / "here", raw, *keys)
    theirs = made(tmp_path / "copied", raw, *keys, "source.copy_local=true")
    names = [str(tmp_path / each / "results").encode() for each in ("here", "copied")]
    assert {name: each.replace(names[0], names[1]) for name, each in ours.items()} == theirs
    ledger = Ledger.read(campaign(tmp_path / "here").paths().ledger(NAME))
    assert [row.path for row in ledger.files if row.state != "staged"] == [f"{n}.parquet" for n in (1, 3, 4)]
    assert snapshot(raw) == before
    with pytest.raises(SourceError, match=r"3\.parquet: is no whole Parquet file"):
        staged(tmp_path / "fail", raw)
    (raw / "3.parquet").unlink()
    campaign(tmp_path / "fail").paths().manifest(NAME).unlink()
    with pytest.raises(FormatError, match=r"[14]\.parquet.*source\.on_bad_file: quarantine"):
        made(tmp_path / "fail", raw)


def test_other_formats_are_read_in_place_too(tmp_path, raw):
    for path in raw.iterdir():
        path.unlink()
    for seed, multiplicity in enumerate(FILES):
        write_hdf5(raw / f"{seed}.h5", multiplicity, seed=seed)
    reader = "source.reader=crpipe.workloads.muons.reading.hdf5:BundlesHdf5"
    assert made(tmp_path / "here", raw, reader) == made(
        tmp_path / "copied", raw, reader, "source.copy_local=true"
    )


def run_here(code, *words):
    """Run code in a process of its own, which finds this module and the support of the tests."""
    places = os.pathsep.join([str(Path(__file__).parent), str(SUPPORT)])
    command = [sys.executable, "-c", code, *map(str, words)]
    variables = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


READ_ONCE = """
import sys
from pathlib import Path
from test_in_place import made

def count():
    return int(Path("/proc/self/io").read_text().split()[1])

root, small, large = map(Path, sys.argv[1:4])
made(root / "imports", small)
begun = count()
made(root / "measured", large, *sys.argv[4:])
print(count() - begun)
"""


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel does not count what is read")
def test_a_byte_is_read_once(tmp_path, raw):
    """Most of the large file is a column that is not read: temporary files and shards are small."""
    large = tmp_path / "large" / NAME
    large.mkdir(parents=True)
    table = pq.read_table(raw / "1.parquet")
    other = pa.array([np.random.default_rng(1).bytes(1 << 19)] * len(table))
    pq.write_table(table.append_column("other", other), large / "0.parquet", use_dictionary=False)
    size = tree_bytes(large)
    assert size > len(table) << 19
    assert run_here(READ_ONCE, tmp_path / "here", raw, large) < 1.05 * size
    assert run_here(READ_ONCE, tmp_path / "copied", raw, large, "source.copy_local=true") > 2.9 * size


KILLS = """
import os, signal, sys
from pathlib import Path
from test_in_place import NAME, campaign, made, snapshot

root, raw = map(Path, sys.argv[1:])
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.utime"}

def make(folder, copied, last=0):
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1]
    seen = 0

    def count(event, words):
        nonlocal seen
        writes = event == "open" and isinstance(words[2], int) and words[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in CHANGES:
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    products = made(folder, raw, f"source.copy_local={copied}")
    with (root / "products").open("a") as file:
        file.write(f"{seen} {hash(tuple(sorted(products.items())))}\\n")
    os._exit(0)

def lose(paths):
    declared = paths.shard_manifest(NAME), paths.outlier_manifest(NAME), paths.ledger(NAME)
    for path in (*declared, paths.multiplicity(NAME)):
        path.unlink(missing_ok=True)

before = snapshot(raw)
every = 1 if "CRPIPE_KILLS" in os.environ else 32
for copied in ("false", "true"):
    assert make(root / copied, copied) == 0
    count, whole = (root / "products").read_text().split()[-2:]
    for number in range(1, int(count) + 1, every):
        folder = root / f"{copied}-{number}"
        assert make(folder, copied, number) == signal.SIGKILL, folder
        if number % 3 == 1:
            lose(campaign(folder).paths())
        assert make(folder, copied) == 0, folder
        assert (root / "products").read_text().split()[-1] == whole, folder
        assert snapshot(raw) == before, folder
print(count)
"""


@pytest.mark.timeout(3600)
def test_kills_at_operations_on_files_change_no_byte_and_no_raw_file(tmp_path, raw):
    """CRPIPE_KILLS: before each of them; else before some.

    Of files read in place and of copies. Some lose their outputs, too, as a workflow engine deletes them.
    """
    assert run_here(KILLS, tmp_path, raw) > 100


def replaced(path):
    """Put another file of the same size and time in its place."""
    status, other = path.stat(), path.with_name("other.tmp")
    other.write_bytes(bytes(status.st_size))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


def appended(path):
    with path.open("ab") as file:
        file.write(b"more")


def rewritten(path):
    """Write other bytes, and set the time back."""
    status = path.stat()
    damage(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = [
    (appended, r"has \d+ bytes, \d+ when it was listed"),
    (lambda path: os.utime(path, (2e9, 2e9)), "last written 2033-.* when it was listed"),
    (Path.unlink, "missing|No such file"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_a_file_that_is_not_the_listed_one_is_refused_and_taken_once_it_is_listed_again(
    tmp_path, raw, change, says
):
    path = raw / "2.parquet"
    kept = path.read_bytes()
    config = staged(tmp_path, raw)
    change(path)
    manifest = config.paths().manifest(NAME)
    with pytest.raises(SourceError, match=rf"^{path}: ({says}).*list the range again.* rm {manifest} "):
        split(config)
    with pytest.raises(SourceError, match=rf"2\.parquet: .*({says}|gone|before)"):
        stage_range(opened(config), NAME, NullProgress())
    assert not config.paths().ledger(NAME).exists()
    path.write_bytes(kept)
    manifest.unlink()
    assert made(tmp_path, raw) == made(tmp_path / "other", raw)


@pytest.mark.parametrize("held", [True, False])
def test_a_file_that_changes_while_it_is_decoded_makes_no_ledger(tmp_path, raw, monkeypatch, held):
    monkeypatch.setattr("crpipe.campaign.raw_proofs._HELD", 1 << 27 if held else 0)
    decode = scatter._scatter_file

    def changing(task, file, *others):
        found = decode(task, file, *others)
        if file.number == 1:
            rewritten(raw / "1.parquet")
        return found

    monkeypatch.setattr(scatter, "_scatter_file", changing)
    config = staged(tmp_path, raw)
    with pytest.raises(
        SourceError, match=rf"^{raw}/1\.parquet: changed since .*crc32c.*list the range again"
    ):
        split(config)
    assert not config.paths().ledger(NAME).exists()


def other(path):
    """Write other events' file of the same size, and set the time back."""
    status = path.stat()
    noted(path, "2")
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def noted(path, text):
    pq.write_table(pq.read_table(path).replace_schema_metadata({"note": text}), path)


def copied(path):
    """Put a copy in its place."""
    shutil.copy2(path, path.with_name("copy.tmp"))
    path.with_name("copy.tmp").rename(path)


@pytest.mark.parametrize("change", [other, copied, lambda path: path.chmod(0o640)])
def test_another_file_with_size_and_time_of_the_listing_is_reported_and_noted(tmp_path, raw, change):
    path = raw / "2.parquet"
    noted(path, "1")
    config, told = staged(tmp_path, raw), Told()
    change(path)
    split_range(Campaign.open(config), NAME, told)
    assert "warning: 0000000-0000999: 1 files are others, or changed, since the listing" in str(told)
    ledger = Ledger.read(config.paths().ledger(NAME))
    assert [text.rpartition(": ")[2] for text in ledger.notes] == ["2.parquet"]
    assert {row.path: row.checksum for row in ledger.files}["2.parquet"] == checksums.of_file(path, "crc32c")


def inodes(config):
    return [each.inode for each in read_manifest(config.paths().manifest(NAME))]


def test_a_file_system_whose_inodes_change_by_themselves_has_none_in_the_listing(tmp_path, raw, monkeypatch):
    """A listing of an earlier version has none, either."""
    whole = made(tmp_path / "whole", raw)
    assert inodes(campaign(tmp_path / "whole")) == [path.stat().st_ino for path in sorted(raw.iterdir())]
    monkeypatch.setattr("crpipe.source.local.mount_of", lambda _: Mount("/", "fuse.sshfs", ()))
    _keeps_inodes.cache_clear()
    try:
        config = staged(tmp_path / "other", raw)
    finally:
        _keeps_inodes.cache_clear()
    assert inodes(config) == [None] * 3
    assert pq.read_schema(config.paths().manifest(NAME)).names == ["path", "uri", "size", "mtime"]
    copied(raw / "2.parquet")
    split(config)
    assert Ledger.read(config.paths().ledger(NAME)).notes is None
    assert {**product_bytes(config), "listing": whole["listing"]} == whole


def test_another_name_or_mode_of_a_file_is_no_change(tmp_path, raw, monkeypatch):
    decode = scatter._scatter_file

    def renaming(task, file, *others):
        (raw / file.path).chmod(0o640)
        return decode(task, file, *others)

    whole = made(tmp_path / "whole", raw)
    monkeypatch.setattr(scatter, "_scatter_file", renaming)
    assert made(tmp_path / "other", raw) == whole


def test_a_range_is_made_again_from_the_same_files_only(tmp_path, raw):
    whole = made(tmp_path, raw)
    config = campaign(tmp_path)
    next(config.paths().shards(NAME).glob("train*.parquet")).unlink()
    assert made(tmp_path, raw) == whole
    next(config.paths().shards(NAME).glob("train*.parquet")).unlink()
    rewritten(raw / "1.parquet")
    with pytest.raises(DataError, match=r"made from other files than there is now:\n *1\.parquet: crc32c"):
        made(tmp_path, raw)


def test_a_copy_takes_the_place_of_a_link_and_a_link_that_of_nothing(tmp_path, raw):
    config = staged(tmp_path, raw)
    before = snapshot(raw)
    staged(tmp_path, raw, "source.copy_local=true")
    copies = [*config.paths().raw(NAME).glob("*.parquet")]
    assert [path.is_symlink() for path in copies] == [False] * 3
    staged(tmp_path, raw)  # what is verified stays
    assert [path.is_symlink() for path in copies] == [False] * 3
    assert snapshot(raw) == before


def test_a_link_that_a_kill_left_unfinished_keeps_no_copy_from_being_made(tmp_path, raw):
    config = campaign(tmp_path, f"source.uri={raw.parent}/{{range}}/*.*")
    listed(config, NAME)
    before = snapshot(raw)
    folder = config.paths().raw(NAME)
    staged(tmp_path, raw)  # its listing stays
    config.paths().staged(NAME).unlink()
    (folder / "0.parquet").rename(folder / "0.parquet.part")
    staged(tmp_path, raw, "source.copy_local=true")
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert snapshot(raw) == before
