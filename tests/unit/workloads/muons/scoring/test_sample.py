import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.workloads.muons.scoring.sample import Sample, energy_scores, log_energy, radius


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


def test_blocks_hold_all_events_and_change_no_number(monkeypatch):
    sample = sample_of([2, 1, 0, 3], np.arange(1, 19).reshape(6, 3))
    whole = sample.summaries, sample.values("log_radius"), sample.count_within(10.0)
    monkeypatch.setattr("crpipe.workloads.muons.scoring.sample._BLOCK", 2)
    again = sample_of([2, 1, 0, 3], np.arange(1, 19).reshape(6, 3))
    parts = list(again.blocks())
    assert [first for first, _ in parts] == [0, 1, 3]
    assert sum(len(part.muons) for _, part in parts) == 6
    assert (again.summaries == whole[0]).all()
    assert [each.tolist() for each in again.values("log_radius")] == [each.tolist() for each in whole[1]]
    assert again.count_within(10.0).tolist() == whole[2].tolist() == [2, 0, 0, 0]


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
