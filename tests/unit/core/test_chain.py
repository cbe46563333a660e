import pytest

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import Range, make_chain

TILES = [Range(8 * index, 8 * index + 7) for index in range(5)]
A, B, C, D, E = map(str, TILES)


def chain(*skipped, size=1, rounds=1, has_outliers=True):
    kept = [tile for tile in TILES if str(tile) not in skipped]
    return make_chain(TILES, kept, size, rounds, has_outliers=has_outliers)


def test_by_default_each_range_is_a_link_of_its_own_name():
    made = chain()
    assert made.names == (A, B, C, D, E, "outliers")
    assert [link.parent for link in made.links] == ["", A, B, C, D, E]


def test_links_keep_their_names_when_a_range_is_skipped():
    whole, part = chain(size=2), chain(B, size=2)
    assert whole.names == part.names == ("0000000-0000015", "0000016-0000031", E, "outliers")
    assert [link.ranges for link in part.links] == [(A,), (C, D), (E,), ()]
    assert "0000000-0000015" not in chain(A, B, size=2).names


def test_a_round_follows_the_round_before_and_its_links_have_its_number():
    made = chain(size=0, rounds=3, has_outliers=False)
    assert made.names == ("0000000-0000039", "0000000-0000039.2", "0000000-0000039.3")
    assert [link.parent for link in made.links] == ["", *made.names[:2]]
    assert [(link.ranges_before, link.ranges_after) for link in made.links] == [(0, 5), (5, 10), (10, 15)]
    assert [made.ranges_trained_by(link) for link in made.links] == [(A, B, C, D, E)] * 3


def test_seen_are_the_ranges_up_to_a_link():
    made = chain(size=2)
    assert [made.ranges_trained_by(link) for link in made.links] == [
        (A, B),
        (A, B, C, D),
        (A, B, C, D, E),
        (A, B, C, D, E),
    ]


def test_a_run_that_continues_another_begins_after_its_link():
    made = chain(size=2).after("0000000-0000015")
    assert made.names == ("0000016-0000031", E, "outliers")
    assert (made.links[0].parent, made.links[0].ranges_before) == ("", 2)
    with pytest.raises(ConfigError, match="outliers is the last link; nothing is left to train"):
        chain(size=2).after("outliers")
    with pytest.raises(ConfigError, match="x: not a link of this campaign"):
        chain(size=2).after("x")


def test_a_chain_is_one_to_one_when_each_range_has_one_link_of_its_own():
    assert chain().one_to_one
    assert chain(B).one_to_one
    assert not chain(size=2).one_to_one
    assert not chain(rounds=2).one_to_one
    assert not chain().after(A).one_to_one


def test_a_link_is_found_by_name_and_another_name_is_refused():
    assert chain().named(B).ranges_before == 1
    with pytest.raises(ConfigError, match=r"x: not a link of this campaign \(.*, …, outliers\)"):
        chain().named("x")
