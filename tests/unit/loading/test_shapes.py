"""Numbers of rows are rounded up to few shapes."""

import itertools

import pytest

from crpipe.loading.microbatch import rounded


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_shapes_have_few_leading_digits_and_are_the_next_ones(bits):
    shapes = sorted({rounded(count, bits) for count in range(1, 70_000)})
    assert shapes[: 1 << bits] == list(range(1, 1 + (1 << bits)))
    for low, high in itertools.pairwise(shapes[(1 << (bits - 1)) - 1 :]):
        assert 1 < high / low <= 1 + 2 / (1 << bits)
        assert rounded(low + 1, bits) == high
    assert all(rounded(shape, bits) == shape for shape in shapes)


def test_by_default_shapes_are_at_most_a_thirtysecond_apart():
    assert [rounded(count) for count in (0, 63, 1_000, 30_000)] == [0, 63, 1_008, 30_208]
