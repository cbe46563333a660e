import pytest

from crpipe.core import checksums


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
