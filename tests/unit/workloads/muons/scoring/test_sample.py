import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.workloads.muons.scoring.sample import AXES, Axis, Sample, energy_scores, log_energy, radius


def sample_of(multiplicity, muons):
    events = len(multiplicity)
    columns = {
        "energy_gev": np.full(events, 1e6, np.float32),
        "zenith_rad": np.zeros(events, np.float32),
        "mass_number": np.ones(events, np.float32),
        "depth_m": np.full(events, 2000.0, np.float32),
    }
    return Sample(columns, np.array(multiplicity, np.uint32), np.array(muons, np.float32), np.arange(events))


SAMPLE = sample_of([0, 2, 1, 0], [[100, 3, 4], [1000, 0, 10], [10, 6, 8]])


def test_muons_know_their_event_and_geometry():
    assert SAMPLE.event.tolist() == [1, 1, 2]
    assert radius(SAMPLE.muons).tolist() == [5, 10, 10]
    np.testing.assert_allclose(log_energy(SAMPLE.muons), [2, 3, 1])
    assert SAMPLE.of(1).tolist() == [[100, 3, 4], [1000, 0, 10]]
    assert SAMPLE.of(3).shape == (0, 3)


def test_muons_of_a_bin_keep_their_order():
    sample = sample_of([2, 1, 0, 3], np.arange(18).reshape(6, 3))
    found = {number: places.tolist() for number, places in sample.muons_by(np.array([7, 3, 5, 7]))}
    assert found == {3: [2], 7: [0, 1, 3, 4, 5]}


def test_events_are_gathered_with_their_own_muons():
    sample = sample_of([2, 1, 0, 3], np.arange(18).reshape(6, 3))
    part = sample.take(np.array([3, 2, 0]))
    assert part.multiplicity.tolist() == [3, 0, 2]
    assert part.group.tolist() == [3, 2, 0]
    assert part.muons[:, 0].tolist() == [9, 12, 15, 0, 3]
    assert (part.summaries == sample.summaries[[3, 2, 0]]).all()


def test_summaries_are_of_each_event_alone():
    rows = SAMPLE.summaries
    assert rows.shape == (4, 11)
    assert not np.delete(rows[0], 8).any()
    mean, spread, largest, smallest, total = rows[1][[0, 2, 5, 6, 8]]
    assert (mean, spread, largest, smallest) == pytest.approx((2.5, 0.5, 3.0, 2.0))
    assert total == pytest.approx(np.log10(1100), abs=1e-4)
    assert rows[2][9:].tolist() == [6, 8]


def test_correlation_in_an_event_has_its_sign():
    up = sample_of([3], [[10, 1, 0], [100, 2, 0], [1000, 4, 0]]).summaries[0, 4]
    down = sample_of([3], [[10, 4, 0], [100, 2, 0], [1000, 1, 0]]).summaries[0, 4]
    assert up > 0.99
    assert down < -0.99


def test_bins_and_their_names():
    axis = Axis("depth_m", (1500.0, 2000.0))
    assert axis.bins(np.array([1000, 1500, 1999, 3000])).tolist() == [0, 1, 1, 2]
    assert [axis.label(number) for number in range(3)] == [
        "depth_m_below_1500",
        "depth_m_1500_to_2000",
        "depth_m_above_2000",
    ]


def test_joint_bins_tell_every_combination_apart():
    values = {
        "energy_gev": [1e3, 1e8],
        "zenith_rad": [0.1, 1.2],
        "mass_number": [1, 56],
        "depth_m": [1200, 2500],
    }
    grid = np.meshgrid(*values.values(), indexing="ij")
    columns = {name: part.ravel() for name, part in zip(values, grid, strict=True)}
    sample = Sample(columns, np.zeros(16, np.uint32), np.zeros((0, 3), np.float32), np.arange(16))
    assert len(np.unique(sample.joint_bins)) == 16
    assert {axis.name for axis in AXES} == {"energy_gev", "zenith_deg", "mass_number", "depth_m"}


def test_the_energy_score_is_without_bias_and_least_for_the_true_distribution():
    """Normal log energies: E|x - y| = 2 s / sqrt(pi) for the truth itself, half of it the score."""
    rng = np.random.default_rng(1)
    multiplicity = np.resize([1, 2, 40, 0], 8000).astype(np.uint32)

    def events(shift, width):
        items = np.ones((int(multiplicity.sum()), 3), np.float32)
        items[:, 0] = 10 ** (2.0 + shift + width * rng.normal(size=len(items)))
        return Events({}, multiplicity, items)

    def score(shift, width):
        found = energy_scores(events(0.0, 0.3), events(shift, width), events(shift, width), 3)
        assert not found["score_log_energy"][multiplicity == 0].any()
        return found["score_log_energy"][multiplicity > 0].mean()

    assert score(0.0, 0.3) == pytest.approx(0.3 / np.sqrt(np.pi), abs=0.01)
    assert all(score(*wrong) > score(0.0, 0.3) + 0.01 for wrong in ((0.2, 0.3), (0.0, 0.1), (0.0, 0.7)))
