import numpy as np
import pytest
from scipy.stats import binom

from crpipe.statistics.verdict import DIFFERS, Difference
from crpipe.workloads.direction.layout import azimuth_zenith
from crpipe.workloads.direction.scoring import metrics
from crpipe.workloads.direction.scoring.metrics import (
    KAPPA_METRICS,
    METRICS,
    calibration,
    expected_angle,
    shares_inside,
)
from measured import measured


def measure(truth, prediction, pulses=None):
    """Numbers and errors of events that are all groups of their own."""
    return measured(metrics.measure(truth, prediction, pulses), np.size(truth["zenith"]))


def sides(zenith, predicted, **more):
    """Truth and prediction with these zenith angles in degrees, in one plane."""
    truth, prediction = (
        {"azimuth": np.zeros(len(values)), "zenith": np.deg2rad(values)} for values in (zenith, predicted)
    )
    return truth, prediction | more


def vmf_angles(kappa, rng):
    """Draw angles to the mean direction from von Mises-Fisher densities by inverting the distribution."""
    w = 1 + np.log(1 - rng.random(len(kappa)) * (1 - np.exp(-2 * kappa))) / kappa
    return np.arccos(w)


def test_every_declared_metric_is_measured_with_an_error(judged):
    truth, prediction = judged(300)
    found = measure(truth.columns, prediction, truth.multiplicity)
    for metric in (*METRICS, *KAPPA_METRICS):
        assert np.isfinite(found[metric.name])
        assert found[f"{metric.name}_error"] > 0
    assert METRICS[0].name == "angle_mean_deg"
    assert METRICS[1].name == "angle_median_deg"


def test_numbers_without_kappa_are_those_that_need_none(judged):
    truth, prediction = judged(30)
    del prediction["kappa"]
    found = measure(truth.columns, prediction, truth.multiplicity)
    assert {metric.name for metric in METRICS} <= found.keys()
    assert "kappa_coverage_68" not in found


def test_mean_and_quantiles_are_those_of_the_angles():
    found = measure(*sides(np.full(11, 40.0), 40.0 + np.arange(11.0)))
    expected = {"mean": 5, "median": 5, "p10": 1, "p25": 2.5, "p75": 7.5, "p90": 9}
    for name, value in expected.items():
        assert found[f"angle_{name}_deg"] == pytest.approx(value)


def test_a_perfect_prediction_has_the_ideal_numbers(judged):
    truth, _ = judged(200)
    found = measure(truth.columns, truth.columns, truth.multiplicity)
    assert [found[metric.name] for metric in METRICS] == pytest.approx([0.0] * len(METRICS), abs=1e-12)


def test_a_collapse_to_one_direction_shows(judged):
    truth, _ = judged(4000)
    up = {"azimuth": np.zeros(4000), "zenith": np.zeros(4000)}
    found = measure(truth.columns, up)
    assert found["mean_length"] == pytest.approx(1)
    assert found["true_mean_length"] < 0.05
    assert found["collapse"] > 0.95
    assert found["z_bias"] == pytest.approx(1 - np.cos(truth.columns["zenith"]).mean())


def test_errors_are_those_of_means(judged):
    truth, prediction = judged(4000)
    found = measure(truth.columns, prediction, truth.multiplicity)
    z = np.cos(prediction["zenith"]) - np.cos(truth.columns["zenith"])
    assert found["z_bias_error"] == pytest.approx(z.std() / np.sqrt(4000), rel=0.2)


@pytest.mark.parametrize(("right", "low", "high"), [(1.0, 0.665, 0.695), (4.0, 0.0, 0.4), (0.25, 0.9, 1.0)])
def test_coverage_is_68_percent_where_kappa_is_right(right, low, high):
    rng = np.random.default_rng(2)
    kappa = 10 ** rng.uniform(-1, 6, 20_000)
    angle = vmf_angles(kappa, rng)
    truth = {"azimuth": np.zeros(len(kappa)), "zenith": np.zeros(len(kappa))}
    found = measure(truth, {**truth, "zenith": angle, "kappa": right * kappa})
    if right != 1:  # events without any information are covered whatever kappa says
        assert low < found["kappa_coverage_68"] < high
    else:
        assert found["kappa_coverage_68"] == pytest.approx(0.68, abs=0.015)


@pytest.mark.parametrize(("metric", "parts"), [*zip(metrics.KAPPA_METRICS, (1, 4), strict=True)])
def test_of_right_kappas_few_are_said_to_differ_however_few_groups_there_are(metric, parts):
    """Exact: the chance of each number of events inside, times what is said of it."""
    false = []
    for groups in range(metric.groups, metric.groups + 80):
        events = groups // parts
        share = np.arange(events + 1) / events
        error = np.sqrt(share * (1 - share) / (events - 1))
        chance = binom.pmf(np.arange(events + 1), events, metric.ideal)
        words = [
            Difference(*each, groups, metric.tolerance, two_sided=True).word()
            for each in zip(share - metric.ideal, error, strict=True)
        ]
        false.append(chance[np.array(words) == DIFFERS].sum())
    assert np.mean(false) < 0.065
    assert np.max(false) < 0.09


@pytest.mark.parametrize("kappa", [0.0, 1e-9, 1e-3, 1.0, 1e3, 1e9, 1e15])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.68, 0.99])
def test_expected_angle_inverts_the_share_inside(kappa, share):
    assert shares_inside(expected_angle(share, kappa), kappa) == pytest.approx(share, rel=1e-6)


def test_without_information_half_of_the_events_are_in_a_half_sphere():
    assert np.rad2deg(expected_angle(0.5, 0.0)) == pytest.approx(90, abs=1e-3)
    assert shares_inside(np.pi / 3, 0.0) == pytest.approx(0.25, abs=1e-5)


def test_for_small_angles_the_density_is_a_gaussian():
    """In two dimensions, 1 - exp(-1/2) of a Gaussian is within one sigma = 1 / sqrt(kappa)."""
    assert shares_inside(1e-3, 1e6) == pytest.approx(1 - np.exp(-0.5), rel=1e-6)


def test_azimuths_that_differ_by_a_turn_are_the_same():
    azimuth, zenith = azimuth_zenith([[1.0, -1e-9, 0.5]])
    found = measure({"azimuth": azimuth, "zenith": zenith}, {"azimuth": [0.0], "zenith": zenith})
    assert found["angle_mean_deg"] < 1e-6


@pytest.mark.parametrize("wrong", [0.05, 1.0, 30.0])
def test_a_calibration_is_the_factor_by_which_kappa_is_wrong(wrong):
    rng = np.random.default_rng(3)
    kappa = 10 ** rng.uniform(0, 4, 20_000)
    factor, power = calibration(vmf_angles(kappa, rng), wrong * kappa)
    assert power == pytest.approx(1, abs=0.051)
    assert factor * (wrong * 100) ** power == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("power", [0.6, 1.7])
def test_a_calibration_repairs_the_quarters_of_a_kappa_that_is_too_steep_or_too_flat(power):
    rng = np.random.default_rng(4)
    said = 10 ** rng.uniform(1, 3, 8000)
    truth = 7 * (said / 50) ** power
    factor, found = calibration(vmf_angles(truth, rng), said)
    assert found == pytest.approx(power, abs=0.051)
    inside = shares_inside(vmf_angles(truth, rng), factor * said**found) < 0.68
    for part in np.array_split(inside[np.argsort(said)], 4):
        assert part.mean() == pytest.approx(0.68, abs=0.05)


def test_a_calibration_of_nothing_is_one_and_of_nonsense_is_finite():
    assert calibration([], []) == pytest.approx((1, 1))
    assert calibration([np.nan, 1.0], [1.0, np.inf]) == pytest.approx((1, 1))
    assert calibration([0.0], [1.0]) == pytest.approx((1e3, 1))
    assert calibration([3.0], [1e9]) == pytest.approx((1e-3, 1))


def test_parts_are_tracks_and_cascades_halves_by_pulses_and_quarters_by_kappa(judged):
    truth, prediction = judged(400)
    cascade = np.arange(400) % 4 == 0
    found = measure({**truth.columns, "cascade": cascade}, prediction, truth.multiplicity)
    whole = found["angle_mean_deg"]
    assert 0.75 * found["angle_mean_tracks_deg"] + 0.25 * found["angle_mean_cascades_deg"] == pytest.approx(
        whole
    )
    assert (found["angle_mean_bright_deg"] + found["angle_mean_faint_deg"]) / 2 == pytest.approx(whole)
    quarters = [f"quarter_{number}" for number in range(1, 5)]
    angles = [found[f"angle_mean_{name}_deg"] for name in quarters]
    assert angles == sorted(angles, reverse=True)  # the surest events are the best
    assert np.mean(angles) == pytest.approx(whole)
    covered = [found[f"kappa_coverage_68_{name}"] for name in quarters]
    assert np.mean(covered) == pytest.approx(found["kappa_coverage_68"])
