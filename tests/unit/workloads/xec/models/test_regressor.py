"""The workload Regressor: batches, weights, losses and predictions mean what their names say."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from crpipe.events.batch import Events
from crpipe.events.histograms import Histogram
from crpipe.workloads.xec import Regressor, RegressorOptions
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME_VALID, TRUTH, TRUTHS
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.models.heads import task_loss
from crpipe.workloads.xec.models.regressor import Flattening
from crpipe.workloads.xec.sensors import FACE_IDS, INNER
from xenon_models import ALL_TASKS, PLACES, build, collate, loss, predict, validate, with_items, workload
from xenon_toy import make_gammas

GAMMAS = make_gammas(8)
LIKELY = {name: {"loss": "gaussian_nll", "beta": 0.5} for name in TRUTHS}
COLUMNS = [field.name for name in TRUTHS for field in TRUTH[name]]


@pytest.fixture(scope="module")
def plain():
    return build(tasks=ALL_TASKS)


@pytest.fixture(scope="module")
def likely():
    return build(tasks=LIKELY)


def dark(events):
    """Let all sensors be dead in the first event, and the second one without any time."""

    def change(items):
        items[0] = 0
        items[1, :, 1] = items[1, :, 3] = 0

    return with_items(events, change)


def test_a_default_model_has_the_weights_that_the_options_promise():
    made = Regressor(RegressorOptions())
    made.places = PLACES
    assert sum(map(torch.numel, made.model().parameters())) == pytest.approx(0.65e6, rel=0.05)


def test_a_batch_has_the_events_of_the_index_in_its_order(plain):
    made, _ = plain
    batch = collate(made, GAMMAS, [5, 0, 3])
    assert set(batch) == {"sensors", *TRUTHS}
    items = GAMMAS.items.reshape(8, SENSORS, 4)
    assert np.array_equal(batch["sensors"], items[[5, 0, 3]])
    for name in TRUTHS:
        wanted = np.stack([GAMMAS.columns[field.name][[5, 0, 3]] for field in TRUTH[name]], axis=1)
        assert np.array_equal(batch[name], wanted)
        assert batch[name].dtype == torch.float32


def test_channels_are_left_out_in_training_alone():
    made = workload(channel_dropout=0.2)
    batch, same, other, none = (
        collate(made, GAMMAS, seed=seed)["sensors"] for seed in ((1, 2), (1, 2), (1, 3), ())
    )
    assert torch.equal(batch, same)
    assert not torch.equal(batch, other)
    assert np.array_equal(none, GAMMAS.items.reshape(8, SENSORS, 4))
    out = (batch == 0).all(dim=2)
    assert torch.equal(batch[~out], none[~out])
    lit = none[..., PHOTONS_VALID] > 0
    assert out[lit].float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert np.array_equal(collate(workload(), GAMMAS, seed=(1, 2))["sensors"], none)


def test_the_loss_is_the_sum_of_the_tasks_by_their_weights():
    weights = {"energy": 3.0, "position": 0.5, "time": 1.0, "angle": 2.0}
    made, model = build(tasks={name: {"weight": weight} for name, weight in weights.items()})
    total, shown = loss(made, model, GAMMAS)
    wanted = sum(weight * shown[f"{name}_loss"] for name, weight in weights.items())
    torch.testing.assert_close(total.detach(), wanted)


def test_learned_balance_weighs_each_task_by_its_own_spread():
    made, model = build(tasks=ALL_TASKS, balance="learned")
    with torch.no_grad():
        for at, name in enumerate(TRUTHS):
            model.log_variance[name].fill_(at - 1.0)
    total, shown = loss(made, model, GAMMAS)
    losses = [shown[f"{name}_loss"] for name in TRUTHS]
    wanted = sum(each * np.exp(1 - at) + 0.5 * (at - 1) for at, each in enumerate(losses))
    torch.testing.assert_close(total.detach(), wanted)
    assert [shown[f"{name}_spread"].item() for name in TRUTHS] == pytest.approx(
        np.exp([-0.5, 0, 0.5, 1]).tolist()
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tasks": {}}, "name at least one"),
        ({"tasks": {"time": {"log": True}}}, "only energy has a logarithm"),
        (
            {"tasks": {"energy": {}, "time": {"loss": "gaussian_nll"}}, "balance": "learned"},
            r"balance: learned needs .*tasks.time.loss is gaussian_nll",
        ),
    ],
)
def test_tasks_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        RegressorOptions(**options)


@pytest.mark.parametrize("kind", ["plain", "likely"])
def test_the_loss_of_a_validation_is_that_of_training(kind, request):
    made, model = request.getfixturevalue(kind)
    measured = validate(made, model, GAMMAS)
    _, shown = loss(made, model, GAMMAS)
    assert list(measured) == [metric.name for metric in made.validation_metrics]
    for name, each in measured.items():
        assert each.shape == (8,)
        assert each.mean() == pytest.approx(shown[name].item(), rel=1e-5)


def test_a_validation_does_not_leave_channels_out():
    made, model = build(channel_dropout=0.5)
    without, _ = build()
    for name, each in validate(made, model, GAMMAS).items():
        assert np.array_equal(each, validate(without, model, GAMMAS)[name])


def test_rare_energies_count_more_in_the_loss_and_not_in_the_metrics():
    made, model = build(reweight=("energy_gev",), tasks={"energy": {}})
    same, _ = build(tasks={"energy": {}})
    assert made.wanted_histograms == ("energy_gev",)
    histogram = Histogram(0.015, 0.06, np.array([1, 2, 6]))
    made.use_histograms({"energy_gev": histogram})
    batch = collate(made, GAMMAS, [6, 2, 1])
    energy = GAMMAS.columns["energy_gev"][[6, 2, 1]]
    wanted = 9 / (3 * histogram.counts[np.minimum(((energy - 0.015) / 0.015).astype(int), 2)])
    np.testing.assert_allclose(batch["balance"], wanted, rtol=1e-5)
    total, shown = loss(made, model, GAMMAS)
    balance = collate(made, GAMMAS)["balance"].numpy()
    each = validate(made, model, GAMMAS)["energy_loss"]
    assert total.item() == pytest.approx((balance * each).mean(), rel=1e-5)
    assert shown["energy_loss"].item() == pytest.approx(each.mean(), rel=1e-5)
    plain, _ = loss(same, model, GAMMAS)
    assert total.item() != pytest.approx(plain.item(), rel=1e-3)
    assert plain.item() == pytest.approx(each.mean(), rel=1e-5)


def test_predictions_have_their_columns(plain, likely):
    simple = [f"baseline_{name}" for name in COLUMNS]
    found = predict(*plain, GAMMAS)
    assert list(found) == [*COLUMNS, "photons_sum", "photons_inner", "timed", *simple]
    both = [name for column in COLUMNS for name in (column, f"{column}_sigma")]
    found_likely = predict(*likely, GAMMAS)
    assert list(found_likely) == [*both, "photons_sum", "photons_inner", "timed", *simple]
    for column, values in (found | found_likely).items():
        assert values.shape == (8,)
        assert np.isfinite(values).all()
        assert values.dtype == (np.int64 if column == "timed" else np.float32)
    assert all((found_likely[f"{column}_sigma"] > 0).all() for column in COLUMNS)
    declared = [{metric.name for metric in made.metrics} for made, _ in (plain, likely)]
    assert {"energy_pull", "u_pull", "time_pull", "phi_pull"} <= declared[1] - declared[0]


def test_a_prediction_needs_no_truth(plain):
    unknown = Events(
        {name: GAMMAS.columns[name] for name in ("run", "event")}, GAMMAS.multiplicity, GAMMAS.items
    )
    known = predict(*plain, GAMMAS)
    for name, values in predict(*plain, unknown).items():
        assert np.array_equal(values, known[name])


def test_counts_beside_the_predictions_are_those_of_the_event(plain):
    made, model = plain
    found = predict(made, model, GAMMAS)
    items = GAMMAS.items.reshape(8, SENSORS, 4).astype(float)
    np.testing.assert_allclose(found["photons_sum"], items[..., PHOTONS].sum(axis=1), rtol=1e-5)
    inner = np.maximum(items[:, FACE_IDS["inner"], PHOTONS], 0).sum(axis=1)
    np.testing.assert_allclose(found["photons_inner"], inner, rtol=1e-5)
    assert found["timed"].tolist() == items[..., TIME_VALID].sum(axis=1).tolist()
    simple = made.baseline(GAMMAS)
    for name in COLUMNS:
        assert np.array_equal(found[f"baseline_{name}"], simple[name])


def test_predicted_columns_are_those_that_the_loss_compares(likely):
    """Predictions and truth meet in the same columns: nothing is swapped on the way."""
    made, model = likely
    found = predict(made, model, GAMMAS)
    with torch.no_grad():
        out = model(collate(made, GAMMAS)["sensors"])
    units = {"energy": [0.05], "position": [24, 68, 10], "time": [1], "angle": [1, 1]}
    for name in TRUTHS:
        off = np.stack([found[field.name] - GAMMAS.columns[field.name] for field in TRUTH[name]], axis=1)
        if name == "angle":
            off[:, 1] = (off[:, 1] + np.pi) % (2 * np.pi) - np.pi
        off = torch.from_numpy((off / units[name]).astype(np.float32))
        wanted = task_loss(off, out[name][1], made.options.tasks[name])
        np.testing.assert_allclose(
            validate(made, model, GAMMAS)[f"{name}_loss"], wanted, rtol=1e-3, atol=1e-4
        )
        for at, field in enumerate(TRUTH[name]):
            sigma = out[name][1][:, at].exp() * units[name][at]
            np.testing.assert_allclose(found[f"{field.name}_sigma"], sigma, rtol=1e-5)


def test_events_without_light_or_time_give_finite_numbers_and_slopes(likely):
    made, model = likely
    events = dark(make_gammas(3))
    found = predict(made, model, events)
    assert all(np.isfinite(values).all() for values in found.values())
    assert (found["photons_sum"][0], found["timed"][:2].tolist()) == (0, [0, 0])
    model.zero_grad()
    total, shown = loss(made, model, events)
    total.backward()
    assert all(torch.isfinite(number) for number in (total, *shown.values()))
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


def events_of(**columns):
    count = len(next(iter(columns.values())))
    return Events(columns, np.zeros(count, np.uint32), np.zeros((0, 4), np.float32))


def energies(count=20_000, seed=0):
    """Draw a spectrum that falls by a factor of 20."""
    return (0.015 + 0.045 * np.random.default_rng(seed).beta(1, 3, count)).astype(np.float32)


def flatten(values, most, bins=15, name="energy_gev"):
    histogram = Histogram.of(values, (0.015, 0.060, bins))
    made = Flattening({name: histogram}, (name,), most)
    return histogram, made.of(events_of(**{name: values}))


def test_a_weighed_spectrum_is_flat_with_a_mean_weight_of_one():
    values = energies()
    histogram, weights = flatten(values, most=1e6)
    assert weights.dtype == np.float32
    assert weights.mean() == pytest.approx(1, abs=1e-4)
    weighed, _ = np.histogram(values, histogram.edges, weights=weights)
    np.testing.assert_allclose(weighed[histogram.counts > 0], weighed.sum() / 15, rtol=1e-3)
    assert histogram.counts.max() > 20 * histogram.counts[histogram.counts > 0].min()


@pytest.mark.parametrize("most", [1.0, 1.5, 3.0, 10.0])
def test_no_weight_is_above_the_limit_and_the_mean_stays_one(most):
    _, weights = flatten(energies(), most)
    assert weights.max() <= most * (1 + 1e-6)
    assert weights.mean() == pytest.approx(1, abs=1e-4)


def test_below_the_limit_values_are_flat_among_each_other():
    values = energies()
    histogram, weights = flatten(values, most=3.0)
    weighed, _ = np.histogram(values, histogram.edges, weights=weights)
    free = (histogram.counts > 0) & (weighed < 2.99 * histogram.counts)
    assert 3 < free.sum() < 15
    np.testing.assert_allclose(weighed[free], weighed[free].mean(), rtol=1e-3)


def test_values_outside_count_as_in_the_nearest_bin():
    histogram = Histogram(0.0, 4.0, np.array([10, 40, 40, 10]))
    made = Flattening({"w_cm": histogram}, ("w_cm",), 10.0)
    found = made.of(events_of(w_cm=np.array([-5.0, 0.0, 1.0, 3.999, 4.0, 1e9])))
    np.testing.assert_allclose(found, [2.5, 2.5, 0.625, 2.5, 2.5, 2.5])


def test_weights_of_two_columns_are_multiplied():
    counts = {"u_cm": np.array([1, 3]), "w_cm": np.array([4, 1])}
    histograms = {name: Histogram(0.0, 2.0, each) for name, each in counts.items()}
    values = {"u_cm": np.array([0.5, 1.5, 0.5]), "w_cm": np.array([0.5, 0.5, 1.5])}
    alone = [Flattening(histograms, (name,), 10.0).of(events_of(**values)) for name in counts]
    both = Flattening(histograms, tuple(counts), 10.0).of(events_of(**values))
    np.testing.assert_allclose(both, alone[0] * alone[1], rtol=1e-6)
    np.testing.assert_allclose(alone[0], [2, 2 / 3, 2], rtol=1e-6)


def test_without_training_events_all_weigh_the_same():
    made = Flattening({"w_cm": Histogram(0.0, 4.0, np.zeros(4, np.int64))}, ("w_cm",), 10.0)
    assert made.of(events_of(w_cm=np.array([0.5, 3.5]))).tolist() == [1, 1]


def test_a_fit_makes_the_estimates_better_and_the_units_their_resolutions():
    made, model = build(tasks={"energy": {}, "position": {}})
    gammas, others = make_gammas(300), make_gammas(200, seed=5)
    before = made.baseline(others)
    with torch.no_grad():
        made.fit(model, [gammas.part(0, 100), gammas.part(100, 300)])
    after = made.baseline(others)
    for name, better in (("energy_gev", 0.5), ("w_cm", 0.8)):
        off = [np.median(np.abs(each[name] - others.columns[name])) for each in (before, after)]
        assert off[1] < better * off[0]
    inside = np.abs(made.baseline(gammas)["w_cm"] - gammas.columns["w_cm"]) < model.unit_position[2].item()
    assert inside.mean() == pytest.approx(0.683, abs=0.01)


def test_a_fit_learns_which_sensors_see_too_much(monkeypatch):
    """Boards like a chequerboard, too bright and too dark in turns: no sum of the light shows them."""
    row, column = np.divmod(np.arange(INNER.ids.size), INNER.ids.shape[1])
    gain = np.zeros(SENSORS, np.float32)
    gain[INNER.ids.ravel()] = np.where((row // 12 + column // 12) % 2, 0.3, -0.3)
    made, model = build(tasks={"energy": {}})
    monkeypatch.setattr(model.regression, "fit", lambda *_: None)
    gammas, others = make_gammas(300), make_gammas(100, seed=5)
    before = made.baseline(others)["energy_gev"]
    for events in (gammas, others):
        light = np.maximum(sensors_of(events)[..., PHOTONS], 0)
        simple = made.baseline(events)["energy_gev"]
        events.columns["energy_gev"] = simple * np.exp(light @ gain / light.sum(axis=1))
    with torch.no_grad():
        made.fit(model, [gammas])
    after = made.baseline(others)["energy_gev"]
    off = [np.abs(each / others.columns["energy_gev"] - 1).mean() for each in (before, after)]
    assert off[1] < 0.5 * off[0]


def test_a_calibration_scales_the_uncertainties_to_68_percent():
    made, model = build(tasks=LIKELY)
    before = predict(made, model, GAMMAS)
    with torch.no_grad():
        deviations = made.deviations(model, GAMMAS, torch.Generator())
        made.calibrate(model, deviations | {"u_cm": np.full(8, np.nan)})
        again = made.deviations(model, GAMMAS, torch.Generator())
    after = predict(made, model, GAMMAS)
    assert all(np.array_equal(again[name], deviations[name]) for name in deviations)
    for name in COLUMNS:
        assert np.array_equal(after[name], before[name])
        factor = 1 if name == "u_cm" else np.quantile(deviations[name], 0.6827)
        np.testing.assert_allclose(after[f"{name}_sigma"], factor * before[f"{name}_sigma"], rtol=1e-4)
