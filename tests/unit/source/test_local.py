import asyncio
import gzip
import os
import threading
from dataclasses import replace

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.raw_files import Entry
from crpipe.campaign.raw_proofs import written
from crpipe.core.errors import ChangedError, ListingError, TransferError, is_retryable
from crpipe.source import local
from crpipe.source.local import LocalSource, file_type_problem
from crpipe.source.retries import TemporaryFailure
from crpipe.source.uris import RangeSource
from root_files import make_sensors, write_root


@pytest.fixture
def place(tmp_path):
    for name in ("b.h5", "a.h5", "c.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "link.h5").symlink_to(tmp_path / "a.h5")
    return RangeSource("file", "", str(tmp_path), "*.h5", "range R", "check source.uri")


def entries(place):
    return list(asyncio.run(LocalSource().listing(place, place.has))[0])


def described(*paths):
    return [asyncio.run(LocalSource().look_up(str(path), path.name, "source.files")) for path in paths]


def fetched(entry, part):
    return asyncio.run(LocalSource().fetch(entry, part))


def test_the_chosen_files_are_listed_and_directories_are_not(place):
    found = entries(place)
    assert [entry.path for entry in found] == ["a.h5", "b.h5", "link.h5"]
    assert [entry.size for entry in found] == [4, 4, 4]
    assert asyncio.run(LocalSource().listing(place, place.has))[1] == ["folder.h5"]


def test_a_directory_that_cannot_be_listed_names_the_range_and_the_way_out(place, tmp_path):
    lost = replace(place, folder=str(tmp_path / "lost"))
    with pytest.raises(ListingError, match=r"range R: .*lost cannot be listed \(No such file.*check source"):
        entries(lost)


@pytest.mark.parametrize(("seconds", "year"), [(253_402_300_800, 9999), (-1e13, 1)])
def test_a_time_without_a_date_is_the_nearest_one_that_has_one(seconds, year):
    """Of a damaged clock or archive; ZFS, btrfs and tmpfs hold any."""
    assert written(os.stat_result((*[0] * 8, seconds, 0))).year == year


def test_a_link_to_itself_is_named_where_it_is_chosen(place, tmp_path):
    (tmp_path / "junk").symlink_to("junk")
    assert len(entries(place)) == 3
    (tmp_path / "loop.h5").symlink_to("loop.h5")
    with pytest.raises(ListingError, match=r"loop\.h5: cannot be looked up"):
        entries(place)


def test_a_broken_link_is_an_error(place, tmp_path):
    (tmp_path / "a.h5").unlink()
    with pytest.raises(ListingError, match=r"link\.h5: cannot be looked up"):
        entries(place)


def test_what_is_no_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(ListingError, match=r"not a file; correct source\.files"):
            described(tmp_path / name)


def test_a_file_is_copied_and_compared(place, tmp_path):
    entry = described(tmp_path / "c.txt")[0]
    proof = fetched(entry, tmp_path / "copy.part")
    assert (proof.size, proof.verified, proof.algorithm) == (5, "copy-compare", "crc32c")
    assert (tmp_path / "copy.part").read_text() == "c.txt"


def test_a_file_that_does_not_begin_and_end_as_its_type_does_is_bad(place, tmp_path):
    with pytest.raises(TransferError, match=r"a\.h5: is no HDF5 file"):
        fetched(entries(place)[0], tmp_path / "copy.part")


def test_a_copy_that_differs_is_made_again(place, tmp_path, monkeypatch):
    monkeypatch.setattr(local.checksums, "of_file", lambda *_: "00000000")
    with pytest.raises(TemporaryFailure, match="the copy differs from its source"):
        fetched(entries(place)[0], tmp_path / "copy.part")


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (13, TransferError, r"a\.h5: cannot be read \(Permission denied\)"),
        (5, TemporaryFailure, "Input/output error"),
    ],
)
def test_a_file_that_cannot_be_read_is_bad_or_tried_again(
    place, tmp_path, monkeypatch, number, error, message
):
    class Refusing:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, _):
            raise OSError(number, os.strerror(number))

    entry = entries(place)[0]
    with pytest.raises(error, match=message):
        local._read(Refusing(), entry)


def test_a_file_that_is_gone_or_grew_is_bad(place, tmp_path):
    entry = entries(place)[0]
    (tmp_path / "a.h5").write_text("longer than before")
    with pytest.raises(ChangedError, match=r"a\.h5: has 18 bytes, 4 when it was listed: it changed"):
        fetched(entry, tmp_path / "copy.part")
    with pytest.raises(TransferError, match="cannot be read"):
        fetched(Entry("x", str(tmp_path / "x"), 1, None), tmp_path / "copy.part")


OLD, NEW = b"old " * (1 << 19), b"new " * (1 << 19)  # two chunks


def in_place(path):
    with path.open("r+b") as file:
        file.write(NEW)


def in_place_with_its_old_time(path):
    before = path.stat()
    in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_rename(path):
    path.with_name("new").write_bytes(NEW)
    path.with_name("new").rename(path)


def by_rename_with_the_old_time(path):
    before = path.stat()
    path.with_name("new").write_bytes(NEW)
    os.utime(path.with_name("new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_name("new").rename(path)


def append(path):
    with path.open("ab") as file:
        file.write(b"more")


def append_and_cut_again(path):
    append(path)
    os.truncate(path, len(OLD))


def truncate(path):
    os.truncate(path, 100)


def end_only(path):
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"end!")


WRITERS = [
    in_place,
    in_place_with_its_old_time,
    by_rename,
    by_rename_with_the_old_time,
    append,
    append_and_cut_again,
    truncate,
    end_only,
]


@pytest.fixture
def large(tmp_path):
    """A listed file of two chunks, on the disk since a while ago."""
    path = tmp_path / "large.bin"
    path.write_bytes(OLD)
    os.utime(path, (1e9, 1e9))
    return path


def writing_after(monkeypatch, chunks, write, path):
    """Write to the source from another thread after some chunks of each copy were read."""
    real, seen = local._read, []

    def read(source, entry):
        chunk = real(source, entry)
        seen.append(chunk)
        if len(seen) % 3 == chunks:
            writer = threading.Thread(target=write, args=(path,))
            writer.start()
            writer.join()
        return chunk

    monkeypatch.setattr(local, "_read", read)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("write", WRITERS)
def test_a_copy_is_never_of_two_states_of_a_file(large, tmp_path, monkeypatch, write, chunks):
    entry = described(large)[0]
    writing_after(monkeypatch, chunks, write, large)
    with pytest.raises(ChangedError, match="large.bin: "):
        fetched(entry, tmp_path / "copy.part")


@pytest.mark.parametrize("write", [in_place, by_rename, append, truncate, end_only])
def test_a_file_that_was_written_since_its_listing_is_refused(large, tmp_path, write):
    entry = described(large)[0]
    write(large)
    with pytest.raises(
        ChangedError, match=r"large\.bin: (has|last written) .* when it was listed: it changed"
    ):
        fetched(entry, tmp_path / "copy.part")


def test_a_file_replaced_once_by_one_of_the_listed_size_and_time_is_copied_whole(
    large, tmp_path, monkeypatch
):
    entry, times = described(large)[0], [1]
    writing_after(
        monkeypatch,
        1,
        lambda path: by_rename_with_the_old_time(path) if times and times.pop() else None,
        large,
    )
    fetched(entry, tmp_path / "copy.part")
    assert (tmp_path / "copy.part").read_bytes() == NEW


def test_a_file_that_is_touched_once_while_it_is_copied_is_copied_again(large, tmp_path, monkeypatch):
    entry, modes = described(large)[0], [0o600]
    writing_after(monkeypatch, 1, lambda path: path.chmod(modes.pop()) if modes else None, large)
    assert fetched(entry, tmp_path / "copy.part").verified == "copy-compare"
    assert (tmp_path / "copy.part").read_bytes() == OLD


def test_a_file_that_is_always_touched_while_it_is_copied_is_refused_in_the_end(large, tmp_path, monkeypatch):
    entry = described(large)[0]
    writing_after(monkeypatch, 1, in_place_with_its_old_time, large)
    with pytest.raises(ChangedError, match="changed while it was copied, 3 times: something writes to it"):
        fetched(entry, tmp_path / "copy.part")


def test_waiting_does_not_repair_a_file_that_changed():
    assert is_retryable("TransferError")
    assert not is_retryable("ChangedError")


def test_a_write_in_the_tick_of_the_kernels_clock_in_which_the_copy_began_is_seen(tmp_path, monkeypatch):
    """Size and time of the write and of the one before are the same where nobody waits."""
    path = tmp_path / "fresh.bin"
    for _ in range(5):
        path.write_bytes(OLD)
        entry = described(path)[0]
        writing_after(monkeypatch, 1, end_only, path)
        with pytest.raises(ChangedError):
            fetched(entry, tmp_path / "copy.part")
        monkeypatch.undo()


PAGE = b"<!DOCTYPE html>" + b" " * 5000


@pytest.fixture
def files(tmp_path):
    """One good file of each type, by name."""
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = range(100)
    with h5py.File(tmp_path / "block.hdf5", "w", userblock_size=1024) as file:
        file["x"] = range(100)
    write_root(tmp_path / "a.root", *make_sensors(3))
    (tmp_path / "a.csv").write_text("x,y")
    return tmp_path


def test_good_files_have_no_fault(files):
    assert [file_type_problem(file, file.name) for file in sorted(files.iterdir())] == [""] * 5


@pytest.mark.parametrize("name", ["a.parquet", "a.h5", "block.hdf5", "a.root", "a.csv"])
def test_a_web_page_is_no_data(files, name):
    (files / name).write_bytes(PAGE)
    assert file_type_problem(files / name, name).startswith(("is no whole", "is no HDF5", "is a web page"))


@pytest.mark.parametrize("name", ["a.parquet", "a.h5", "a.root"])
def test_a_file_that_was_packed_under_its_old_name_is_to_be_unpacked(files, name):
    (files / name).write_bytes(gzip.compress((files / name).read_bytes()))
    assert file_type_problem(files / name, name).endswith(
        "but packed with gzip (as .i3.gz and .tar.gz are): unpack it first: gunzip"
    )


@pytest.mark.parametrize("name", ["a.parquet", "a.root"])
def test_a_file_that_ends_early_is_not_whole(files, name):
    content = (files / name).read_bytes()
    (files / name).write_bytes(content[: len(content) - 5])
    assert file_type_problem(files / name, name)


def test_an_empty_file_is_none_of_a_known_type(files):
    for name in ("a.parquet", "a.h5", "a.root"):
        (files / name).write_bytes(b"")
        assert file_type_problem(files / name, name)
