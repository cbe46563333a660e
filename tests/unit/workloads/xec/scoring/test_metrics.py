import numpy as np
import pytest

from crpipe.statistics.groups import value_and_error
from crpipe.workloads.xec.layout import TRUTHS
from crpipe.workloads.xec.scoring import metrics
from crpipe.workloads.xec.scoring.metrics import FEWEST, half_width, middle, profile, within
from measured import measured
from xenon_toy import make_predictions, make_truth

N = 20_000


def value(statistic, events=N):
    return statistic(np.ones(events))


def measure(truth, prediction, tasks):
    """Numbers and errors of events that are all groups of their own."""
    return measured(metrics.measure(truth, prediction, tasks), len(next(iter(truth.values()))))


def gaussian(width=1.0, shift=0.0, events=N, seed=0):
    return shift + width * np.random.default_rng(seed).normal(size=events)


@pytest.fixture(scope="module")
def judged():
    truth = make_truth(2000)
    return truth.columns, make_predictions(truth)


def test_widths_of_a_gaussian_are_its_sigma():
    values = gaussian(3.0, 10.0)
    assert value(half_width(values)) == pytest.approx(3.0, rel=0.02)
    assert value(within(values - 10)) == pytest.approx(3.0, rel=0.02)
    assert value(within(values)) > 10


def test_errors_by_bootstrap_are_those_of_the_formulas():
    """Of a quantile: sqrt(p (1 - p) / N) / density; of the median: 1.2533 sigma / sqrt(N)."""
    values = gaussian(2.0)
    every = np.arange(N)
    assert value_and_error(middle(values), every)[1] == pytest.approx(1.2533 * 2 / np.sqrt(N), rel=0.2)
    p, density = metrics.WITHIN, 2 * np.exp(-0.5) / np.sqrt(2 * np.pi) / 2
    assert value_and_error(within(values), every)[1] == pytest.approx(
        np.sqrt(p * (1 - p) / N) / density, rel=0.2
    )


def test_the_energy_is_judged_relative_and_about_its_median():
    energy = np.random.default_rng(1).uniform(0.015, 0.06, N)
    found = measure({"energy_gev": energy}, {"energy_gev": energy * (1 + gaussian(0.02, 0.05))}, ["energy"])
    assert found["energy_resolution"] == pytest.approx(2.0, rel=0.03)
    assert found["energy_bias"] == pytest.approx(5.0, abs=0.1)
    assert found["energy_bias_error"] == pytest.approx(1.2533 * 2 / np.sqrt(N), rel=0.2)


def test_a_place_is_judged_about_zero_and_in_three_dimensions():
    true = {"u_cm": np.zeros(N), "v_cm": np.zeros(N), "w_cm": np.zeros(N)}
    moved = {"u_cm": np.full(N, 0.3), "v_cm": np.zeros(N), "w_cm": np.full(N, 0.4)}
    found = measure(true, moved, ["position"])
    expected = {"u_resolution": 0.3, "v_resolution": 0, "w_resolution": 0.4, "distance_resolution": 0.5}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9)
    around = measure(true, true | {"v_cm": np.full(N, 64.84 * 1e-3)}, ["position"])
    assert around["distance_resolution"] == pytest.approx(64.84e-3, rel=1e-4)


def test_times_are_judged_in_ps_about_their_median():
    found = measure({"gamma_time_ns": np.zeros(N)}, {"gamma_time_ns": gaussian(0.07, 0.5)}, ["time"])
    assert found["time_resolution"] == pytest.approx(70, rel=0.03)
    assert found["time_bias"] == pytest.approx(500, rel=0.01)


def test_directions_that_differ_by_a_turn_are_the_same():
    true = {"theta_rad": np.full(N, np.pi / 2), "phi_rad": np.full(N, np.pi - 1e-4)}
    found = measure(true, true | {"phi_rad": np.full(N, 9e-4 - np.pi)}, ["angle"])
    assert found["phi_resolution"] == pytest.approx(1.0, rel=1e-6)
    assert found["opening_angle"] == pytest.approx(1.0, rel=1e-6)
    assert found["theta_resolution"] == 0


def test_near_the_pole_an_azimuth_hardly_matters():
    true = {"theta_rad": np.full(N, 0.01), "phi_rad": np.zeros(N)}
    found = measure(true, true | {"phi_rad": np.full(N, 0.5)}, ["angle"])
    assert found["phi_resolution"] == pytest.approx(500)
    assert found["opening_angle"] == pytest.approx(2 * 10 * np.sin(0.25), rel=1e-3)


@pytest.mark.parametrize(("scale", "pull"), [(1.0, 1.0), (0.5, 2.0)])
def test_pulls_are_one_where_the_predicted_sigma_is_right(scale, pull):
    energy = np.random.default_rng(1).uniform(0.015, 0.06, N)
    sigma = 0.001 * np.random.default_rng(2).uniform(0.5, 2, N)
    prediction = {"energy_gev": energy + sigma * gaussian(seed=3), "energy_gev_sigma": scale * sigma}
    found = measure({"energy_gev": energy}, prediction, ["energy"])
    assert found["energy_pull"] == pytest.approx(pull, rel=0.03)


def test_every_declared_number_is_measured_with_an_error(judged):
    declared = metrics.metrics(TRUTHS, TRUTHS)
    found = measure(*judged, TRUTHS)
    assert {metric.name for metric in declared} == {name for name in found if not name.endswith("_error")}
    for metric in declared:
        assert np.isfinite(found[metric.name])
        assert found[f"{metric.name}_error"] > 0


@pytest.mark.parametrize("task", TRUTHS)
def test_tasks_that_are_not_learned_have_no_numbers(judged, task):
    declared = {metric.name for metric in metrics.metrics([task], [task])}
    found = {name for name in measure(*judged, [task]) if not name.endswith("_error")}
    assert found == declared
    assert declared < {metric.name for metric in metrics.metrics(TRUTHS, TRUTHS)}


def test_pulls_are_declared_only_where_an_uncertainty_is_predicted():
    names = {metric.name for metric in metrics.metrics(["energy", "time"], ["time"])}
    assert "time_pull" in names
    assert "energy_pull" not in names


def test_what_truth_or_prediction_lacks_is_left_out(judged):
    truth, prediction = judged
    assert "u_resolution" not in measure({"energy_gev": truth["energy_gev"]}, prediction, TRUTHS)
    found = measure(truth, {"u_cm": prediction["u_cm"]}, TRUTHS)
    assert "u_resolution" in found
    assert not {"v_resolution", "distance_resolution", "energy_resolution", "u_pull"} & found.keys()


def test_events_whose_truth_is_unknown_do_not_count(judged):
    truth, prediction = judged
    some = truth | {"w_cm": np.where(np.arange(2000) < 500, np.nan, truth["w_cm"])}
    found = measure(some, prediction, ["position"])
    rest = [{name: values[500:] for name, values in side.items()} for side in judged]
    expected = measure(*rest, ["position"])
    for name in ("w_resolution", "w_bias", "w_pull", "distance_resolution"):
        assert found[name] == expected[name]
    assert found["u_resolution"] == measure(truth, prediction, ["position"])["u_resolution"]
    none = truth | {"energy_gev": np.full(2000, np.nan)}
    assert measure(none, prediction, ["energy"]) == {}


def test_a_prediction_that_is_not_a_number_shows(judged):
    truth, prediction = judged
    broken = prediction["u_cm"].copy()
    broken[7] = np.nan
    found = metrics.measure(truth, prediction | {"u_cm": broken}, TRUTHS)
    assert np.isnan(found["u_resolution"](np.ones(2000)))
    assert np.isfinite(found["v_resolution"](np.ones(2000)))


def test_every_event_is_in_one_of_ten_bins_with_equally_many():
    condition = np.random.default_rng(0).exponential(4, 1000)
    found = profile(condition, condition, lambda _: np.sum)
    assert found.value.tolist() == [100] * 10
    assert (np.diff(found.where) > 0).all()


def test_bins_hold_the_statistic_of_their_events():
    rng = np.random.default_rng(0)
    condition = rng.uniform(1, 3, 20_000)
    found = profile(condition, condition * rng.normal(size=20_000), within)
    assert found.value == pytest.approx(found.where, rel=0.1)
    assert (np.abs(found.value - found.where) < 4 * found.error).all()


def test_few_events_have_few_bins_and_too_few_have_none():
    values = np.arange(float(FEWEST * 3))
    assert len(profile(values, values, middle).where) == 3
    assert len(profile(values[: FEWEST - 1], values[: FEWEST - 1], middle).where) == 0
    assert len(profile(values[:0], values[:0], middle).where) == 0


def test_events_of_one_condition_are_one_bin():
    found = profile(np.full(500, 2.0), np.arange(500.0), middle)
    assert found.where.tolist() == [2.0]
    assert found.value.tolist() == [249.5]


def sigma(energy, a, b, c):
    return np.sqrt(a**2 / energy + b**2 + c**2 / energy**2)


def energies(terms, events=40_000, seed=0):
    rng = np.random.default_rng(seed)
    energy = rng.uniform(0.01, 0.06, events)
    return {"energy_gev": energy}, {
        "energy_gev": energy * (1 + sigma(energy, *terms) / 100 * rng.normal(size=events))
    }


@pytest.mark.parametrize("terms", [(0.3, 1.0, 0.03), (0.5, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.0, 0.05)])
def test_exact_resolutions_give_back_their_terms(terms):
    energy = np.linspace(0.01, 0.06, 8)
    found, errors = metrics.fit_terms(energy, sigma(energy, *terms), np.full(8, 1e-4))
    assert found == pytest.approx(terms, abs=1e-4)
    assert (errors < 0.2).all()


@pytest.mark.parametrize("seed", range(3))
def test_terms_are_found_within_their_errors(seed):
    terms = (0.3, 1.0, 0.03)
    found = metrics.energy_curve(*energies(terms, seed=seed))
    assert (np.abs(found.terms - terms) < 3.5 * found.terms_error).all()
    assert found.terms_error[1] < 0.3
    where = np.array([0.015, 0.05])
    assert found.at(where) == pytest.approx(sigma(where, *terms), rel=0.05)


def test_terms_are_never_negative():
    """A resolution that rises with the energy has no term of its own: the constant one remains."""
    energy = np.linspace(0.01, 0.06, 8)
    found, _ = metrics.fit_terms(energy, 1 + 20 * energy, np.full(8, 0.05))
    assert found[0] == found[2] == 0
    assert 1.2 < found[1] < 2.2


@pytest.mark.parametrize(
    "energy", [np.full(5000, 0.0528), np.linspace(0.01, 0.06, 50), np.full(100, np.nan), np.zeros(0)]
)
def test_energies_that_are_alike_or_few_have_no_terms(energy):
    assert metrics.measure_curve({"energy_gev": energy}, {"energy_gev": energy * 1.01}) == {}


def test_without_predicted_or_true_energies_there_is_no_curve():
    assert metrics.measure_curve({"energy_gev": np.ones(500)}, {"u_cm": np.ones(500)}) == {}
    assert metrics.measure_curve({}, {"energy_gev": np.ones(500)}) == {}
