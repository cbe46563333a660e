"""Golden values: every campaign's order, and its split into training and validation, depend on them."""

import numpy as np
import pytest

from crpipe.split.hashing import bucket_of, share_of, shuffle_keys

FILES = np.array([0, 0, 1, 7, 2**32 - 1], np.uint32)
ROWS = np.array([0, 1, 0, 123456, 2**32 - 1], np.uint32)
NUMBERS = np.arange(20)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (
            1,
            [
                0xB34DDA01551EAC7C,
                0x17AC661CAF7B9F14,
                0x73104AC0952791D4,
                0x60C2069CEE3EDB23,
                0xAB1E15F3CE457128,
            ],
        ),
        (
            2,
            [
                0xBEAB7A870DD1D6CE,
                0x8F7134F50DFF44A6,
                0x5571D836E421F079,
                0x4342E93B11515161,
                0x443798707C41AB56,
            ],
        ),
    ],
)
def test_shuffle_keys_never_change(seed, expected):
    assert shuffle_keys(FILES, ROWS, seed).tolist() == expected


@pytest.mark.parametrize(
    ("columns", "fraction", "seed", "expected"),
    [
        ([NUMBERS.astype(np.uint64)], 0.3, 1, [2, 6, 8, 12, 13, 16, 17]),
        ([NUMBERS.astype(np.uint64), (NUMBERS % 3).astype(np.int32)], 0.3, 1, [2, 5, 10, 13]),
        ([np.linspace(-1, 1, 20).astype(np.float32)], 0.5, 5, [1, 4, 6, 8, 11, 12, 13, 15, 16, 17, 19]),
        ([NUMBERS % 2 == 1, -(NUMBERS % 3).astype(np.int32)], 0.5, 1, [1, 2, 4, 7, 8, 10, 13, 14, 16, 19]),
    ],
)
def test_the_choice_of_validation_groups_never_changes(columns, fraction, seed, expected):
    assert np.flatnonzero(share_of(columns, [fraction], seed) == 0).tolist() == expected


def test_buckets_never_change_and_ascend_with_the_keys():
    assert bucket_of(shuffle_keys(FILES, ROWS, 1), 1000).tolist() == [700, 92, 449, 377, 668]
    keys = np.array([0, 1 << 32, 1 << 63, 2**64 - 1], np.uint64)
    assert bucket_of(keys, 7).tolist() == [0, 0, 3, 6]
    many = np.sort(shuffle_keys(np.zeros(10_000, np.uint32), np.arange(10_000, dtype=np.uint32), 3))
    counts = np.bincount(bucket_of(many, 10), minlength=10)
    assert (np.diff(bucket_of(many, 10)) >= 0).all()
    assert counts.min() > 900


def test_keys_of_different_places_differ():
    files, rows = (grid.ravel().astype(np.uint32) for grid in np.meshgrid(np.arange(100), np.arange(1000)))
    assert len(np.unique(shuffle_keys(files, rows, 1))) == 100_000


def test_zero_has_one_sign_and_a_fraction_its_limits():
    signs = np.array([0.0, -0.0])
    for seed in range(20):
        first, second = share_of([signs], [0.5], seed)
        assert first == second
    assert share_of([NUMBERS], [0], 1).all()
    many = np.arange(100_000)
    one, two = share_of([many], [0.2], 1), share_of([many], [0.2, 0.1], 1)
    assert 0.78 < one.mean() < 0.82
    assert 0.09 < (two == 1).mean() < 0.11
    assert np.array_equal(one == 0, two == 0)  # a test part takes nothing from validation
