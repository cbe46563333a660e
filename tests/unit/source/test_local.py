import asyncio
import os
from dataclasses import replace

import pytest

from crpipe.core.errors import ListingError, TransferError
from crpipe.core.raw_files import Entry
from crpipe.source import local
from crpipe.source.local import LocalSource
from crpipe.source.options import RangeSource
from crpipe.source.retries import Transient


@pytest.fixture
def place(tmp_path):
    for name in ("b.h5", "a.h5", "c.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "link.h5").symlink_to(tmp_path / "a.h5")
    return RangeSource("file", "", str(tmp_path), "*.h5", "range R", "check source.uri")


def entries(place):
    return list(asyncio.run(LocalSource().entries(place, place.has)))


def described(*paths):
    names = [path.name for path in paths]
    return asyncio.run(LocalSource().describe([str(path) for path in paths], names, "source.files"))


def fetched(entry, part):
    return asyncio.run(LocalSource().fetch(entry, part))


def test_the_chosen_files_are_listed_and_directories_are_not(place):
    found = entries(place)
    assert [entry.path for entry in found] == ["a.h5", "b.h5", "link.h5"]
    assert [entry.size for entry in found] == [4, 4, 4]
    assert asyncio.run(LocalSource().folders(place)) == ["folder.h5"]


def test_a_directory_that_cannot_be_listed_names_the_range_and_the_way_out(place, tmp_path):
    lost = replace(place, folder=str(tmp_path / "lost"))
    with pytest.raises(ListingError, match=r"range R: .*lost cannot be listed \(No such file.*check source"):
        entries(lost)


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
    with pytest.raises(Transient, match="the copy differs from its source"):
        fetched(entries(place)[0], tmp_path / "copy.part")


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (13, TransferError, r"a\.h5: cannot be read \(Permission denied\)"),
        (5, Transient, "Input/output error"),
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
    with pytest.raises(TransferError, match=r"a\.h5: has 18 bytes, 4 when it was listed: it changed"):
        fetched(entry, tmp_path / "copy.part")
    with pytest.raises(TransferError, match="cannot be read"):
        fetched(Entry("x", str(tmp_path / "x"), 1, None), tmp_path / "copy.part")
