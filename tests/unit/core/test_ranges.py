import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import Range, make_ranges, pick

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
    tiles = make_ranges(first, first + step * count - 1, step, NOTHING)
    numbers = [number for tile in tiles for number in range(tile.first, tile.last + 1)]
    assert numbers == list(range(first, first + step * count))
    assert len(tiles) == count


def test_a_skipped_range_is_left_out():
    assert [str(tile) for tile in make_ranges(0, 29, 10, frozenset({Range(10, 19)}))] == [
        "0000000-0000009",
        "0000020-0000029",
    ]


@pytest.mark.parametrize(
    ("last", "skip", "message"),
    [
        (
            28,
            (),
            r"0 to 28 is not a whole number of ranges of 10 \(ranges.size\); write ranges.last: 19 or 29",
        ),
        (8, (), "write ranges.last: 9$"),
        (29, (Range(5, 14),), "0000005-0000014 is not a range of this campaign"),
        (9, (Range(0, 9),), "every range is skipped"),
        (-1, (), "ranges.last: -1 is before ranges.first: 0"),
    ],
)
def test_a_campaign_that_cannot_be_tiled_is_refused(last, skip, message):
    with pytest.raises(ConfigError, match=message):
        make_ranges(0, last, 10, frozenset(skip))


LINKS = ("0000000-0000999", "0001000-0001999", "0000000-0000999.2", "0001000-0001999.2", "outliers")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0", LINKS[0]),
        ("4", "outliers"),
        ("out", "outliers"),
        ("0000000-0000999", LINKS[0]),
        ("0000000-0000999.", LINKS[2]),
    ],
)
def test_a_name_is_found_in_full_by_its_number_and_by_its_beginning(text, name):
    assert pick(text, LINKS, "link") == name


def test_a_name_wins_over_a_number_and_a_number_over_a_beginning():
    assert pick("1", ("a", "b", "1"), "name") == "1"
    assert pick("1", ("a", "b", "10"), "name") == "b"
    assert pick("1", ("10",), "name") == "10"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0001", r"0001: begins 2 links of this campaign: 0001000-0001999, 0001000-0001999\.2; name one$"),
        (
            "0000000-000999",
            r"not a link of this campaign \(0000000-0000999, .*, …, outliers\); did you mean 0000000-0000999",
        ),
        ("5", r"5: not a link of this campaign .*by its beginning, or by its number from 0"),
        ("", "not a link"),
        ("-1", "not a link"),
        ("²", "not a link"),
    ],
)
def test_a_name_that_is_none_or_several_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        pick(text, LINKS, "link")
