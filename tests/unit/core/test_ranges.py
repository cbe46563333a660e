import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import Range, expand

NOTHING = frozenset()


@given(st.integers(0, 9_999_999), st.integers(0, 9_999_999))
def test_text_form_is_read_back(first, last):
    name = Range(min(first, last), max(first, last))
    assert Range.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "42000-42999", "0042000", "0042000-0042999/", "0042000_0042999", "0x"])
def test_another_text_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="0042000-0042999"):
        Range.parse(text)


@pytest.mark.parametrize(("first", "last"), [(2, 1), (-1, 0), (0, 10**7)])
def test_impossible_numbers_are_refused(first, last):
    with pytest.raises(ConfigError, match=f"range {first}-{last}"):
        Range(first, last)


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(1, 50))
def test_ranges_tile_the_campaign_without_gap_or_overlap(first, step, count):
    tiles = expand(first, first + step * count - 1, step, NOTHING)
    numbers = [number for tile in tiles for number in range(tile.first, tile.last + 1)]
    assert numbers == list(range(first, first + step * count))
    assert len(tiles) == count


def test_a_skipped_range_is_left_out():
    assert [str(tile) for tile in expand(0, 29, 10, frozenset({Range(10, 19)}))] == [
        "0000000-0000009",
        "0000020-0000029",
    ]


@pytest.mark.parametrize(
    ("last", "skip", "message"),
    [
        (28, (), "not a whole number of steps of 10; correct ranges.last"),
        (29, (Range(5, 14),), "0000005-0000014 is not a range of this campaign"),
        (9, (Range(0, 9),), "every range is skipped"),
    ],
)
def test_a_campaign_that_cannot_be_tiled_is_refused(last, skip, message):
    with pytest.raises(ConfigError, match=message):
        expand(0, last, 10, frozenset(skip))
