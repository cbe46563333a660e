"""The two workloads: an event's direction depends on its own pulses alone, and means what it says."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from crpipe.events.batch import Events, concatenate
from crpipe.workloads.direction import (
    DeepSet,
    DeepSetOptions,
    FlatTransformer,
    FlatTransformerOptions,
    HierarchicalTransformer,
    HierarchicalTransformerOptions,
)
from crpipe.workloads.direction.layout import opening_angle, unit_vectors
from crpipe.workloads.direction.models import model as module
from crpipe.workloads.direction.models.model import DirectionModel
from crpipe.workloads.direction.scoring.metrics import shares_inside
from directions import WORKLOADS, build, changed, loss, make_events, make_places, predict

NAMES = sorted(WORKLOADS)
LOSSES = ("von_mises_fisher", "angle")


class FirstPlace(nn.Module):
    """A network that points to the sensor of the first row: what a feature does, a direction has to do."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, there):
        return self.scale * x[:, 0, :3]


def pointing(directions, **options):
    """A workload and model that predict the direction in which the one sensor of each event is."""
    places = (500 * unit_vectors(*directions)).astype(np.float32)
    workload, model = build(places=places, **options)
    count = len(places)
    items = np.stack([np.arange(count), *np.ones((2, count)), np.zeros(count)], axis=1).astype(np.float32)
    columns = {"azimuth": directions[0], "zenith": directions[1]}
    events = Events(columns, np.ones(count, np.uint32), items)
    return workload, DirectionModel(model.features, FirstPlace()), events


def some_directions(count=200, seed=5):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 2 * np.pi, count), np.arccos(rng.uniform(-1, 1, count))


def vectors_of(found):
    return unit_vectors(found["azimuth"], found["zenith"])


@pytest.mark.parametrize("choice", LOSSES)
def test_a_prediction_has_its_columns(choice):
    workload, model = build(loss=choice)
    events = make_events([1, 0, 3, 800])
    found = predict(workload, model, events)
    kappa = ["kappa"] * (choice == "von_mises_fisher")
    simple = [f"{name}_{angle}" for name in ("line_fit", "baseline") for angle in ("azimuth", "zenith")]
    assert list(found) == ["azimuth", "zenith", *kappa, "doms", *simple]
    owners = np.repeat(np.arange(4), events.multiplicity)
    assert found["doms"].tolist() == [len(set(events.items[owners == i, 0])) for i in range(4)]
    for columns in (workload.baseline(events), build()[0].baseline(events)):  # nothing is fitted: a line fit
        for column, values in columns.items():
            assert np.array_equal(values, found[f"baseline_{column}"])
            assert np.array_equal(values, found[f"line_fit_{column}"])


def test_truth_is_where_the_neutrino_came_from():
    """By hand: zenith 0 is from above, azimuth 0 from +x, azimuth 90° from +y."""
    half = np.pi / 2
    azimuth, zenith = np.array([0, 0, half, np.pi, 0.3]), np.array([0, half, half, half, np.pi])
    events = make_events([1, 2, 3, 4, 5])
    events.columns.update(azimuth=azimuth, zenith=zenith)
    workload, _ = build()
    batch = workload.collate(events, np.arange(5), ())
    wanted = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, 0, -1]])
    np.testing.assert_allclose(batch["truth"][:5], wanted[batch["order"][:5]], atol=1e-7)


@pytest.mark.parametrize("rotations", [1, 4])
def test_a_sensor_in_some_direction_is_predicted_there(rotations):
    """Places, truth and predicted columns agree about x, y, z: nothing is swapped on the way."""
    workload, model, events = pointing(some_directions(), rotations=rotations)
    found = predict(workload, model, events)
    apart = opening_angle(vectors_of(found), unit_vectors(*some_directions()))
    assert apart.max() <= 1e-6
    np.testing.assert_allclose(found["kappa"], 1, rtol=1e-6)
    with torch.no_grad():
        measured = workload.validate(model, events, torch.Generator())
    assert measured["angle_deg"].max() <= 1e-4
    assert np.abs(measured["z_bias"]).max() <= 1e-6


def test_places_and_truth_are_turned_together_in_training():
    workload, model, events = pointing(some_directions(), rotate=True, loss="angle")
    batch = workload.collate(events, np.arange(200), (1, 2))
    assert batch["turn"].std() > 1
    assert loss(workload, model, events, seed=(1, 2))[0].item() <= 1e-6
    unturned = unit_vectors(*some_directions())[batch["order"][:200]]
    truth = batch["truth"][:200].numpy()
    assert opening_angle(truth, unturned).mean() > 0.5
    np.testing.assert_allclose(truth[:, 2], unturned[:, 2], atol=1e-6)
    for still, seed in ((workload, ()), (pointing(some_directions())[0], (1, 2))):
        assert still.collate(events, np.arange(200), seed)["turn"].abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_mean_over_four_turns_turns_with_the_detector_by_90_degrees(name):
    events, places = make_events([1, 8, 90, 400, 30]), make_places()
    turned = np.stack([-places[:, 1], places[:, 0], places[:, 2]], axis=1)
    first, second = (predict(*build(name, places=each, rotations=4), events) for each in (places, turned))
    moved = unit_vectors(first["azimuth"] + np.pi / 2, first["zenith"])
    assert opening_angle(vectors_of(second), moved).max() <= 1e-5
    once, other = (predict(*build(name, places=each), events) for each in (places, turned))
    moved = unit_vectors(once["azimuth"] + np.pi / 2, once["zenith"])
    assert opening_angle(vectors_of(other), moved).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_shift_of_all_times_changes_nothing_but_with_absolute_times(name):
    events = make_events([1, 8, 90, 400, 30])
    late = changed(events, slice(None), time=events.items[:, 1] + 30_000)
    workload, model = build(name)
    first, second = (predict(workload, model, each) for each in (events, late))
    assert opening_angle(vectors_of(first), vectors_of(second)).max() <= 1e-5
    np.testing.assert_allclose(second["kappa"], first["kappa"], rtol=1e-5)
    workload, model = build(name, time="absolute")
    first, second = (predict(workload, model, each) for each in (events, late))
    assert opening_angle(vectors_of(first), vectors_of(second)).min() > 1e-4


def one_event(sensors):
    """An event whose pulses are one after another on these sensors, all in coincidence."""
    count = len(sensors)
    items = np.stack([sensors, 6000 + 10 * np.arange(count), np.ones(count), np.zeros(count)], axis=1)
    columns = {"azimuth": np.ones(1), "zenith": np.ones(1)}
    return Events(columns, np.array([count], np.uint32), items.astype(np.float32))


def differs(workload, model, event, pulse, **values):
    first, second = (predict(workload, model, each) for each in (event, changed(event, pulse, **values)))
    return not np.array_equal(first["azimuth"], second["azimuth"])


@pytest.mark.parametrize("name", NAMES)
def test_the_model_sees_the_first_pulses_of_a_sensor_and_counts_all(name):
    event = one_event([7, 7, 7, 9])
    workload, model = build(name, pulses_per_dom=2)
    assert differs(workload, model, event, 1, charge=5)
    assert not differs(workload, model, event, 2, charge=5)
    assert differs(workload, model, event, 2, sensor=9)  # another number of pulses
    assert differs(*build(name, pulses_per_dom=3), event, 2, charge=5)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_sees_the_sensors_that_are_hit_first(name):
    event = one_event([30, 7, 30, 90, 2])
    workload, model = build(name, max_doms=2)
    assert differs(workload, model, event, 2, charge=5)  # late, but on the first sensor
    assert not differs(workload, model, event, [3, 4], sensor=[91, 150], charge=5)
    assert differs(*build(name, max_doms=3), event, 3, sensor=91)
    assert predict(workload, model, event)["doms"].tolist() == [4]
    pulses = name == "HierarchicalTransformer"  # it bounds their number, the others that of sensors
    assert workload.size(event).tolist() == ([5] if pulses else [2])
    assert build(name, max_doms=2, pulses_per_dom=2)[0].size(event).tolist() == ([4] if pulses else [2])
    assert workload.size(make_events([0])).tolist() == [1]  # a row without pulses


def test_metrics_count_what_is_cut_and_padded():
    events = concatenate([one_event([30, 7, 30, 90, 2]), one_event([5])])
    workload, model = build(pulses_per_dom=1, max_doms=3)
    _, shown = loss(workload, model, events)
    assert shown["doms_cut"].item() == pytest.approx(1 / 5)
    assert shown["pulses_cut"].item() == pytest.approx(2 / 6)
    _, shown = loss(*build(), events)
    assert (shown["doms_cut"].item(), shown["pulses_cut"].item()) == (0, 0)
    batch = workload.collate(make_events([20] * 30), np.arange(30), ())
    rows = sum(each.numel() for name, each in batch.items() if name.startswith("rows_"))
    real = batch["kept"][batch["counts"] > 0].sum().item()
    assert real < rows
    assert batch["cut"][0].item() == pytest.approx(1 - real / rows)


def test_the_number_shown_in_training_is_the_angle_of_the_predictions():
    workload, model = build()
    events = make_events([40, 3, 200, 17, 1])
    with torch.no_grad():
        measured = workload.validate(model, events, torch.Generator())
        _, shown = loss(workload, model, events)
    truth = unit_vectors(events.columns["azimuth"], events.columns["zenith"])
    found = vectors_of(predict(workload, model, events))
    assert list(measured) == [metric.name for metric in workload.validation_metrics]
    np.testing.assert_allclose(measured["angle_deg"], np.degrees(opening_angle(found, truth)), rtol=1e-6)
    np.testing.assert_allclose(measured["z_bias"], found[:, 2] - truth[:, 2], atol=1e-9)
    assert shown["angle_deg"].item() == pytest.approx(measured["angle_deg"].mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("workload", "millions"),
    [
        (FlatTransformer(FlatTransformerOptions()), 0.5),
        (FlatTransformer(FlatTransformerOptions(width=256, layers=6, feedforward=1024, head=1024)), 5.0),
        (FlatTransformer(FlatTransformerOptions(width=384, layers=6, feedforward=1280, head=1024)), 10.0),
        (DeepSet(DeepSetOptions()), 0.07),
        (HierarchicalTransformer(HierarchicalTransformerOptions()), 0.8),
    ],
)
def test_sizes_are_those_of_the_docs(workload, millions):
    workload.places = make_places()
    assert sum(map(torch.numel, workload.model().parameters())) == pytest.approx(1e6 * millions, rel=0.1)


@pytest.mark.parametrize("given", [{"input": "none"}, {"input": "mlp"}, {"residual_scales": True}])
def test_an_input_and_its_scales_change_what_an_event_gives_and_not_that_of_others(given):
    """In a batch or alone, an event gives the same vectors; they are not those of a linear input."""
    events = make_events([1, 40, 7, 120, 3])
    options = {"width": 32, "pulses_per_dom": 8, **given}
    workload, model = build(**options)
    whole = vectors_of(predict(workload, model, events))
    alone = [vectors_of(predict(workload, model, events.part(each, each + 1))) for each in range(5)]
    assert opening_angle(whole, np.concatenate(alone)).max() <= 1e-5
    other = vectors_of(predict(*build(width=32, pulses_per_dom=8), events))
    assert opening_angle(whole, other).max() > 1e-3


def test_without_an_input_features_themselves_are_the_tokens():
    """The embedding has no weights; zeros fill the width."""
    _, model = build(input="none", width=34, pulses_per_dom=8)
    assert list(model.network.enter.parameters()) == []
    x = torch.randn(2, 3, model.features.width)
    assert torch.equal(model.network.enter(x), torch.cat([x, torch.zeros(2, 3, 2)], dim=-1))
    message = "input: none needs a width of at least 131 for 41 pulses_per_dom, found 128"
    with pytest.raises(ValidationError, match=message):
        FlatTransformerOptions(input="none", pulses_per_dom=41)


@pytest.mark.parametrize("name", ["FlatTransformer", "HierarchicalTransformer"])
def test_attention_drops_out_in_training_alone_and_by_the_seed(name):
    workload, model = build(name, dropout=0.5)
    events, found = make_events([40, 7, 120]), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(loss(workload, model.train(), events)[0].item())
    assert found[0] == found[1] != found[2]
    plain = build(name)
    assert loss(workload, model.eval(), events)[0].item() == loss(*plain, events)[0].item()


def test_heads_have_to_divide_the_width():
    with pytest.raises(ValidationError, match="3 heads do not divide the width of 128"):
        FlatTransformerOptions(heads=3)


def test_only_an_uncertainty_is_judged_as_one():
    workloads = [build(loss=choice)[0] for choice in LOSSES]
    names = [{metric.name for metric in workload.metrics} for workload in workloads]
    assert names[0] - names[1] == {"kappa_coverage_68", "kappa_coverage_68_quarter_4"}
    assert names[1] < names[0]
    assert [workload.calibration_events for workload in workloads] == [5000, 0]


@pytest.mark.parametrize("rough", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("choice", LOSSES)
@pytest.mark.parametrize("name", NAMES)
def test_forward_passes_of_16_bits_are_near_and_their_losses_are_float32(name, choice, rough):
    workload, model = build(name, loss=choice)
    events = make_events([3, 40, 7, 120, 1])
    exact, _ = loss(workload, model, events)
    with torch.autocast("cpu", rough):
        found, _ = loss(workload, model, events)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(exact.item(), rel=0.1, abs=0.1)


def fitted(name="FlatTransformer", count=60, **options):
    """A workload and a model whose regression knows some events."""
    workload, model = build(name, **options)
    events = make_events(np.random.default_rng(2).integers(0, 90, count) * (np.arange(count) % 9 > 0))
    with torch.no_grad():
        workload.fit(model, [events.part(0, 20), events.part(20, count)])
    return workload, model, events


@pytest.mark.parametrize("name", NAMES)
def test_a_regression_sees_an_event_alone_whatever_is_beside_it(name, monkeypatch):
    """Its sensors are padded with those of others, and with few or many others."""
    workload, model, events = fitted(name)
    whole = workload.baseline(events)
    assert not np.allclose(whole["azimuth"], predict(workload, model, events)["line_fit_azimuth"])
    alone = [workload.baseline(events.part(each, each + 1)) for each in range(len(events))]
    alone = {column: np.concatenate([each[column] for each in alone]) for column in whole}
    assert opening_angle(vectors_of(whole), vectors_of(alone)).max() <= 1e-4
    monkeypatch.setattr(module, "_PAIRS", 1)
    assert opening_angle(vectors_of(whole), vectors_of(workload.baseline(events))).max() <= 1e-5


def test_an_event_without_pulses_teaches_nothing():
    _, model, events = fitted()
    other, changed_model = build()
    assert (events.multiplicity == 0).any()
    with torch.no_grad():
        other.fit(changed_model, [events.take(np.flatnonzero(events.multiplicity > 0))])
    counts = [each.regression.centre for each in (model, changed_model)]
    torch.testing.assert_close(*counts)


def test_a_calibration_changes_kappa_alone_and_ends_at_68_percent():
    workload, model, events = fitted(rotations=2)
    before = predict(workload, model, events)
    with torch.no_grad():
        deviations = workload.deviations(model, events, torch.Generator())
        deviations["angle"][0] = np.nan
        workload.calibrate(model, deviations)
        again = workload.deviations(model, events, torch.Generator())
    assert np.array_equal(again["kappa"], deviations["kappa"])
    after = predict(workload, model, events)
    assert model.sharpness.item() != 1
    for column, values in before.items():
        expected = model.kappa(torch.from_numpy(again["kappa"])).numpy() if column == "kappa" else values
        np.testing.assert_allclose(after[column], expected, rtol=1e-5)
    inside = shares_inside(again["angle"][1:], after["kappa"][1:]) < 0.68
    assert inside.mean() == pytest.approx(0.68, abs=0.05)  # some are alike


def test_a_checkpoint_of_before_the_power_is_read():
    _, model, _ = fitted()
    state = {name: value for name, value in model.state_dict().items() if name != "power"}
    model.power.fill_(2.0)
    model.load_state_dict(state)
    assert model.power.item() == 1
