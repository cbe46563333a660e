import pytest

from crpipe.core import checksums


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [  # check values of the algorithms' definitions, over the text 123456789
        ("crc32c", "e3069283"),
        ("adler32", "091e01de"),
        ("md5", "25f9e794323b453885f5181f1b624d0b"),
    ],
)
def test_known_values(tmp_path, algorithm, expected):
    (tmp_path / "file").write_bytes(b"123456789")
    assert checksums.of_file(tmp_path / "file", algorithm) == expected
    running = checksums.new(algorithm)
    running.update(b"1234")
    running.update(b"56789")
    assert running.hexdigest() == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("crc32c=4waSgw==", ("crc32c", "e3069283")),
        ("crc32c=E3069283", ("crc32c", "e3069283")),
        ("adler32=91e01de", ("adler32", "091e01de")),
        ("md5=JfnnlDI7RTiF9RgfG2JNCw==", ("md5", "25f9e794323b453885f5181f1b624d0b")),
        ("sha=x, adler32=091E01DE", ("adler32", "091e01de")),
        ("CRC32C=e3069283,adler32=091e01de", ("crc32c", "e3069283")),
        ("sha-256=abc", None),
        ("crc32c=", None),
        ("crc32c=not base64!", None),
        ("", None),
    ],
)
def test_spellings_of_servers(header, expected):
    assert checksums.parse(header) == expected
