"""The workload Regressor: batches, losses and predictions mean what their names say."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from crpipe.events.batch import Events, concatenate
from crpipe.events.histograms import Histogram
from crpipe.train.workload import Baseline, ShowsEvents, UsesHistograms, UsesTables, Validates
from crpipe.workloads.xec import Regressor, RegressorOptions
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME_VALID, TRUTH, TRUTHS
from crpipe.workloads.xec.models.heads import task_loss
from crpipe.workloads.xec.sensors import FACE_IDS, write_sensor_map
from unrendered import unrendered
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


def test_it_is_what_the_engine_asks_for_and_reads_the_map(tmp_path):
    made = Regressor(RegressorOptions())
    for protocol in (UsesTables, UsesHistograms, Baseline, Validates, ShowsEvents):
        assert isinstance(made, protocol)
    write_sensor_map(tmp_path / "sensors.csv")
    made.use({"sensors": tmp_path / "sensors.csv"})
    np.testing.assert_allclose(made.places, PLACES, atol=1e-4)
    assert made.event_columns == ("energy_gev", "u_cm", "v_cm", "w_cm")
    assert made.size(GAMMAS).tolist() == [SENSORS] * 8


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


def test_channels_are_left_out_by_the_seed_alone_and_never_without_one():
    made = workload(channel_dropout=0.2)
    before = torch.get_rng_state()
    first, same, other, none = (
        collate(made, GAMMAS, seed=seed)["sensors"] for seed in ((1, 2), (1, 2), (1, 3), ())
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert np.array_equal(none, GAMMAS.items.reshape(8, SENSORS, 4))
    out = (first == 0).all(dim=2)
    assert torch.equal(first[~out], none[~out])
    lit = none[..., PHOTONS_VALID] > 0
    assert out[lit].float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(collate(workload(), GAMMAS, seed=(1, 2))["sensors"], none)


@pytest.mark.parametrize("choice", ["smooth_l1", "l1", "mse", "gaussian_nll"])
def test_losses_and_metrics_of_micro_batches_add_up(choice):
    made, model = build(tasks={name: {"loss": choice} for name in TRUTHS})
    parts = [loss(made, model, GAMMAS, index) for index in ([4, 1], [0, 6, 3, 5, 2, 7])]
    whole = loss(made, model, GAMMAS)
    assert set(whole[1]) == {f"{name}_loss" for name in TRUTHS}
    for key, value in whole[1].items():
        assert not value.requires_grad
        torch.testing.assert_close((2 * parts[0][1][key] + 6 * parts[1][1][key]) / 8, value)
    torch.testing.assert_close((2 * parts[0][0] + 6 * parts[1][0]) / 8, whole[0])


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


def test_learned_balance_settles_where_all_tasks_weigh_the_same():
    made, model = build(tasks=ALL_TASKS, balance="learned")
    with torch.no_grad():
        for name, spread in model.log_variance.items():
            spread.copy_((2 * loss(made, model, GAMMAS)[1][f"{name}_loss"]).log())
    loss(made, model, GAMMAS)[0].backward()
    for spread in model.log_variance.values():
        assert spread.grad.abs().item() < 1e-6


def test_a_balance_is_not_learned_for_losses_that_may_be_negative():
    with pytest.raises(ValidationError, match=r"balance: learned needs .*tasks.time.loss is gaussian_nll"):
        RegressorOptions(tasks={"energy": {}, "time": {"loss": "gaussian_nll"}}, balance="learned")


@pytest.mark.parametrize(
    ("tasks", "said"), [({}, "name at least one"), ({"time": {"log": True}}, "only energy has a logarithm")]
)
def test_tasks_that_mean_nothing_are_refused(tasks, said):
    with pytest.raises(ValidationError, match=said):
        RegressorOptions(tasks=tasks)


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


def test_events_may_be_reweighted_by_a_column_that_is_no_task():
    made, model = build(reweight=("w_cm",), tasks={"time": {}})
    made.use_histograms({"w_cm": Histogram.of(GAMMAS.columns["w_cm"], (0, 30, 3))})
    assert torch.isfinite(loss(made, model, GAMMAS)[0])


def test_predictions_have_their_columns(plain, likely):
    simple = [f"baseline_{name}" for name in ("u_cm", "v_cm", "w_cm", "gamma_time_ns")]
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


def test_counts_beside_the_predictions_are_those_of_the_event(plain):
    made, model = plain
    found = predict(made, model, GAMMAS)
    items = GAMMAS.items.reshape(8, SENSORS, 4).astype(float)
    np.testing.assert_allclose(found["photons_sum"], items[..., PHOTONS].sum(axis=1), rtol=1e-5)
    inner = np.maximum(items[:, FACE_IDS["inner"], PHOTONS], 0).sum(axis=1)
    np.testing.assert_allclose(found["photons_inner"], inner, rtol=1e-5)
    assert found["timed"].tolist() == items[..., TIME_VALID].sum(axis=1).tolist()
    simple = made.baseline(GAMMAS)
    for name in ("u_cm", "v_cm", "w_cm", "gamma_time_ns"):
        assert np.array_equal(found[f"baseline_{name}"], simple[name])
    assert np.array_equal(found["photons_sum"], simple["photons_sum"])


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


def test_a_prediction_does_not_depend_on_the_other_events_or_on_the_truth(plain):
    made, model = plain
    whole = predict(made, model, GAMMAS)
    unknown = Events(
        {name: GAMMAS.columns[name] for name in ("run", "event")}, GAMMAS.multiplicity, GAMMAS.items
    )
    for index in ([3], [7, 0]):
        alone = predict(made, model, unknown.take(np.array(index)))
        for name, values in alone.items():
            np.testing.assert_allclose(values, whole[name][index], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "likely"])
def test_events_without_light_or_time_give_finite_numbers_and_slopes(kind, request):
    made, model = request.getfixturevalue(kind)
    events = dark(make_gammas(3))
    found = predict(made, model, events)
    assert all(np.isfinite(values).all() for values in found.values())
    assert (found["photons_sum"][0], found["timed"][:2].tolist()) == (0, [0, 0])
    model.zero_grad()
    total, shown = loss(made, model, events)
    total.backward()
    assert all(torch.isfinite(number) for number in (total, *shown.values()))
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


def test_metrics_that_a_score_shows_are_those_of_the_tasks():
    names = {
        tasks: {metric.name for metric in workload(tasks={name: {} for name in tasks}).metrics}
        for tasks in (("energy",), ("position",), ("time",), ("angle",))
    }
    assert "energy_resolution" in names["energy",]
    assert "distance_resolution" in names["position",]
    assert "time_resolution" in names["time",]
    assert not names["energy",] & names["time",]
    likely = {metric.name for metric in workload(tasks={"energy": {"loss": "gaussian_nll"}}).metrics}
    assert names["energy",] < likely


def test_forward_passes_in_bfloat16_are_near_and_their_losses_are_float32(plain):
    made, model = plain
    model.zero_grad()
    exact, _ = loss(made, model, GAMMAS)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = loss(made, model, GAMMAS)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.05)
    rough.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


def test_a_score_takes_what_a_prediction_gives(likely, tmp_path):
    made, model = likely
    events = concatenate([make_gammas(12, seed=seed) for seed in range(3)])
    with unrendered():
        found = made.score(events, predict(made, model, events), tmp_path)
    assert {metric.name for metric in made.metrics} <= set(found)
    assert all(np.isfinite(value) for name, value in found.items() if name in {m.name for m in made.metrics})
    assert list(tmp_path.glob("*.svg"))
