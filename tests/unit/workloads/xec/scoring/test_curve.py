import numpy as np
import pytest

from crpipe.workloads.xec.scoring import curve
from xenon_toy import make_predictions, make_truth


def sigma(energy, a, b, c):
    return np.sqrt(a**2 / energy + b**2 + c**2 / energy**2)


def judged(terms, events=40_000, seed=0):
    rng = np.random.default_rng(seed)
    energy = rng.uniform(0.01, 0.06, events)
    return {"energy_gev": energy}, {
        "energy_gev": energy * (1 + sigma(energy, *terms) / 100 * rng.normal(size=events))
    }


@pytest.mark.parametrize("terms", [(0.3, 1.0, 0.03), (0.5, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.0, 0.05)])
def test_exact_resolutions_give_back_their_terms(terms):
    energy = np.linspace(0.01, 0.06, 8)
    found, errors = curve.fit(energy, sigma(energy, *terms), np.full(8, 1e-4))
    assert found == pytest.approx(terms, abs=1e-4)
    assert (errors < 0.2).all()


@pytest.mark.parametrize("seed", range(3))
def test_terms_are_found_within_their_errors(seed):
    terms = (0.3, 1.0, 0.03)
    found = curve.energy_curve(*judged(terms, seed=seed))
    assert (np.abs(found.terms - terms) < 3.5 * found.terms_error).all()
    assert found.terms_error[1] < 0.3
    where = np.array([0.015, 0.05])
    assert found.at(where) == pytest.approx(sigma(where, *terms), rel=0.05)


def test_terms_are_never_negative():
    """A resolution that rises with the energy has no term of its own: the constant one remains."""
    energy = np.linspace(0.01, 0.06, 8)
    found, _ = curve.fit(energy, 1 + 20 * energy, np.full(8, 0.05))
    assert found[0] == found[2] == 0
    assert 1.2 < found[1] < 2.2


def test_more_events_give_smaller_errors():
    few, many = (curve.energy_curve(*judged((0.3, 1.0, 0.0), events)) for events in (2000, 60_000))
    assert many.terms_error[1] < few.terms_error[1]


def test_numbers_have_names_and_errors():
    truth = make_truth(3000)
    found = curve.measure(truth.columns, make_predictions(truth))
    assert set(found) == {f"{name}{end}" for name in curve.TERMS for end in ("", "_error")}


@pytest.mark.parametrize(
    "energy", [np.full(5000, 0.0528), np.linspace(0.01, 0.06, 50), np.full(100, np.nan), np.zeros(0)]
)
def test_energies_that_are_alike_or_few_have_no_terms(energy):
    assert curve.measure({"energy_gev": energy}, {"energy_gev": energy * 1.01}) == {}


def test_without_predicted_or_true_energies_there_is_no_curve():
    assert curve.measure({"energy_gev": np.ones(500)}, {"u_cm": np.ones(500)}) == {}
    assert curve.measure({}, {"energy_gev": np.ones(500)}) == {}
