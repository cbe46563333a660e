import os

import pytest

from crpipe.core import checksums
from crpipe.source.pelican.download import CHUNKS, PIECE, PartialFile
from crpipe.source.retries import TemporaryFailure


def copy(path, content, sizes, found=b""):
    """Write ``content`` in chunks of these sizes, the last one to the end, after what was found."""
    path.write_bytes(found)
    with PartialFile(path, len(content), "adler32") as part:
        part.read_back()
        at = part.found
        for size in [*sizes, len(content)]:
            part.write(content[at : at + size])
            at = min(at + size, len(content))
        return part.checksum(), part.position


@pytest.mark.parametrize("sizes", [[], [0], [1] * (CHUNKS + 10), [PIECE, PIECE - 1, 2], [16_384] * 100])
@pytest.mark.parametrize("found", [0, 1000])
def test_what_stands_in_the_file_is_what_came(tmp_path, sizes, found):
    content = os.urandom(2_000_000)
    checksum, position = copy(tmp_path / "part", content, sizes, content[:found])
    assert (tmp_path / "part").read_bytes() == content
    assert (checksum, position) == (checksums.of_file(tmp_path / "part", "adler32"), len(content))


def test_an_empty_file_is_made(tmp_path):
    assert copy(tmp_path / "part", b"", []) == ("00000001", 0)
    assert (tmp_path / "part").read_bytes() == b""


def test_what_an_earlier_try_left_damaged_is_seen_in_the_checksum(tmp_path):
    content = os.urandom(10_000)
    whole, _ = copy(tmp_path / "part", content, [])
    damaged, _ = copy(tmp_path / "part", content, [], b"\0" * 5000)
    assert damaged != whole


def test_more_than_the_file_holds_is_begun_again(tmp_path):
    content = os.urandom(10_000)
    assert copy(tmp_path / "part", content, [], content + b"more") == copy(tmp_path / "part", content, [])


@pytest.mark.parametrize("found", [0, 9000])
def test_more_bytes_than_belong_there_never_reach_the_file(tmp_path, found):
    path = tmp_path / "part"
    path.write_bytes(bytes(found))
    with (
        PartialFile(path, 10_000, "crc32c") as part,
        pytest.raises(TemporaryFailure, match="more bytes than the 10000"),
    ):
        part.write(bytes(10_001 - found))
    assert path.stat().st_size == found


def test_what_came_stays_when_the_try_fails(tmp_path):
    path = tmp_path / "part"
    with pytest.raises(ZeroDivisionError), PartialFile(path, 10_000, "crc32c") as part:
        fail_after(part.write(b"some"))
    assert path.read_bytes() == b"some"


def fail_after(_):
    raise ZeroDivisionError
