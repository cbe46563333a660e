import pytest

from crpipe.core.text import Column, bar, compact, counted, duration, measured, number, shorten, size, table


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.00 KiB"), (1536 << 20, "1.50 GiB"), (1000 << 30, "1,000 GiB"),
     (213 << 30, "213 GiB"), (5 << 40, "5.00 TiB"), (7000 << 40, "7,000 TiB")],
)  # fmt: skip
def test_sizes(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (99_999, "99,999"), (123_456, "123 k"), (1_234_567, "1.23 M"), (45e9, "45 G"), (2e12, "2 T")],
)
def test_large_numbers_are_short(value, text):
    assert compact(value) == text
    assert len(text) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (7_260, "2 h 01 min"), (266_400, "3 d 2 h")],
)
def test_durations(value, text):
    assert duration(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [(0.0312, None, "0.0312"), (0.0312, 0.002, "0.0312 ± 0.0020"), (12345.6, 78.0, "12,346 ± 78"),
     (2.0, 0.0, "2"),     (-123456.7, None, "-123,457"),
     (1e-7, None, "1e-07"), (float("nan"), None, "nan"), (float("inf"), None, "inf"), (0, None, "0")],
)  # fmt: skip
def test_measured_numbers(value, error, text):
    assert measured(value, error) == text


def test_words():
    assert number(1234567) == "1,234,567"
    assert (counted(1, "file"), counted(2, "file")) == ("1 file", "2 files")
    assert bar(0.5, 4) == "██░░"
    assert shorten("one\n two  three", 9) == "one two …"


def columns():
    return [
        Column("range", ["0000000-0000999", "b"]),
        Column("attempt", ["1", "12"], drop=1, right=True),
        Column("empty", ["", ""], drop=2),
        Column("error", ["a rather long description of what happened", ""], drop=3, least=12),
    ]


def test_a_wide_table_shows_every_column_that_holds_something():
    lines = table(columns(), 100)
    assert lines[0].split() == ["range", "attempt", "error"]
    assert lines[2] == "b                     12"


def test_a_narrower_table_first_cuts_the_last_column_then_drops_columns_in_order():
    cut = table(columns(), 50)
    assert cut[0].split() == ["range", "attempt", "error"]
    assert cut[1].endswith("…")
    assert table(columns(), 32)[0].split() == ["range", "error"]
    assert table(columns(), 20)[0].split() == ["range"]
    for width in (20, 32, 50, 100):
        assert max(map(len, table(columns(), width))) <= width


def test_control_characters_of_a_name_are_written_as_escapes():
    assert shorten("a\x1b[2J b\r\nc\u202e", 80) == r"a\x1b[2J b c\u202e"
