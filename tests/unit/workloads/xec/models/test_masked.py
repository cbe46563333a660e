"""Sensors are hidden and found again: a model never sees what it is asked for, each is listed once."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from crpipe.config.loading import load_config
from crpipe.train.pretrained import match_weights
from crpipe.workloads.xec import InpainterOptions
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME, TIME_VALID
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.models.masked import (
    DEAD,
    HIDDEN,
    LISTS,
    hidden_sensor_columns,
    hidden_sensor_table,
    visible,
)
from crpipe.workloads.xec.scoring.baseline import neighbour_average, solid_angle_average
from crpipe.workloads.xec.sensors import FACE_IDS, FACES, face_of
from xenon_models import PLACES, WORKLOADS, build, collate, loss, predict, validate, with_items, workload
from xenon_toy import make_gammas

GAMMAS = make_gammas(4, dead=0.05)
ITEMS = sensors_of(GAMMAS)
VALID = ITEMS[..., PHOTONS_VALID] > 0
LATER = ("mask_flat", "photons_power", "mask_faces", "reweight_light", "balance")
KINDS = ("MaskedAutoencoder", "Inpainter")


@pytest.fixture(scope="module")
def built():
    return {kind: build(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def each(request, built):
    built[request.param][1].zero_grad()
    return built[request.param]


def with_share(made, share):
    """Build the same workload again, with another share for evaluation and prediction."""
    again = WORKLOADS["Inpainter"][0](made.options.model_copy(update={"predict_mask": share}))
    again.places = PLACES
    return again


@pytest.mark.parametrize("seed", [(1, 2), ()])
def test_an_autoencoder_hides_its_share_exactly(seed):
    batch = collate(workload("MaskedAutoencoder", mask=0.6), GAMMAS, [3, 1], seed=seed)
    valid = batch["sensors"][..., PHOTONS_VALID] > 0
    assert batch["hidden"].sum(dim=1).tolist() == torch.round(0.6 * valid.sum(dim=1)).tolist()
    assert not (batch["hidden"] & ~valid).any()
    assert np.array_equal(batch["sensors"], sensors_of(GAMMAS)[[3, 1]])


def test_an_inpainter_hides_shares_between_its_limits_in_training_and_one_share_in_a_validation():
    made = workload("Inpainter", mask_least=0.1, mask_most=0.3, predict_mask=0.05)
    valid = sensors_of(GAMMAS)[..., PHOTONS_VALID].sum(axis=1)
    shares = [collate(made, GAMMAS, seed=(seed,))["hidden"].sum(dim=1).numpy() / valid for seed in range(10)]
    assert 0.0999 < np.min(shares) < 0.14
    assert 0.26 < np.max(shares) < 0.3001
    judged = collate(made, GAMMAS)["hidden"].sum(dim=1)
    assert judged.tolist() == np.round(0.05 * valid).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_channels_that_are_left_out_are_dead_and_not_asked_for(kind):
    batch = collate(workload(kind, channel_dropout=0.3), GAMMAS, seed=(5,))
    out = (batch["sensors"] == 0).all(dim=2).numpy() & (sensors_of(GAMMAS)[..., PHOTONS_VALID] > 0)
    assert out.mean() == pytest.approx(0.3 * 0.95, abs=0.02)
    assert not batch["hidden"][torch.from_numpy(out)].any()


def test_what_is_hidden_looks_like_what_is_dead():
    items = torch.from_numpy(sensors_of(GAMMAS))
    hidden = torch.rand(4, SENSORS) < 0.3
    shown = visible(items, hidden)
    assert (shown[hidden] == 0).all()
    assert torch.equal(shown[~hidden], items[~hidden])


def lied_about(batch):
    """Change everything that the hidden and the dead sensors say, but not which they are."""
    sensors, hidden = batch["sensors"].clone(), batch["hidden"]
    draw = torch.Generator().manual_seed(7)
    sensors[hidden] = 1000 * torch.randn(int(hidden.sum()), 4, generator=draw)
    return {"sensors": sensors, "hidden": hidden}


def test_hidden_values_never_reach_the_model(each):
    """The leak that would make every number of this workload worthless."""
    made, model = each
    batch = collate(made, GAMMAS, seed=(3,))
    lying = lied_about(batch)
    assert not torch.equal(batch["sensors"], lying["sensors"])
    with torch.no_grad():
        first, second = (model(visible(one["sensors"], one["hidden"])) for one in (batch, lying))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    sensors = batch["sensors"].clone().requires_grad_()
    found = model(visible(sensors, batch["hidden"]))
    (slope,) = torch.autograd.grad(sum(value.sum() for value in found), sensors)
    assert (slope[batch["hidden"]] == 0).all()
    assert (slope[~batch["hidden"]] != 0).any()


def test_hidden_values_do_not_change_a_prediction(each):
    made, model = each
    first = predict(made, model, GAMMAS)
    hidden = np.zeros((4, SENSORS), bool)
    for event in range(4):
        hidden[event, first["sensor_id"][event][first["kind"][event] == HIDDEN]] = True

    def change(items):
        items[..., PHOTONS][hidden] *= 3
        items[..., TIME][hidden] += 50 * items[..., TIME_VALID][hidden]

    second = predict(made, model, with_items(GAMMAS, change))
    for name in ("sensor_id", "kind", "photons", "time_ns", "neighbours_photons", "solid_angle_photons"):
        for one, other in zip(first[name], second[name], strict=True):
            assert np.array_equal(one, other)
    assert any(
        (one != other).any() for one, other in zip(first["true_photons"], second["true_photons"], strict=True)
    )


def test_the_loss_by_hand(each):
    made, model = each
    batch = collate(made, GAMMAS, seed=(3,))
    with torch.no_grad():
        total, shown = made.loss(model, batch, torch.Generator())
        found = model(visible(batch["sensors"], batch["hidden"]))
    options = made.options
    codec, smooth = model.encoder.features.codec, torch.nn.SmoothL1Loss(beta=options.beta)
    parts = {"photons": [], "time": []}
    for event in range(4):
        hidden, own = batch["hidden"][event], batch["sensors"][event]
        truth = codec.encode_photons(own[hidden, PHOTONS])
        parts["photons"].append(smooth(found.photons_encoded[event, hidden], truth))
        timed = hidden & (own[:, TIME_VALID] > 0)
        truth = (own[timed, TIME] - found.expected_ns[event, timed]) / codec.time_scale
        # An event whose hidden sensors have no time counts as one without an error.
        parts["time"].append(
            smooth(found.time_encoded[event, timed], truth) if timed.any() else torch.zeros(())
        )
    assert sum(each.item() > 0 for each in parts["time"]) >= 2
    means = {name: torch.stack(values).mean() for name, values in parts.items()}
    alive = batch["sensors"][..., PHOTONS_VALID] > 0
    share = batch["hidden"].sum() / alive.sum()
    assert share > batch["hidden"].float().mean()  # 5 % are dead, and do not count
    expected = {f"{name}_loss": value for name, value in means.items()} | {"mask_ratio": share}
    torch.testing.assert_close(shown, expected)
    torch.testing.assert_close(total, means["photons"] + options.time_weight * means["time"])


def test_a_validation_measures_the_hidden_sensors_in_the_units_of_the_codec(each):
    made, model = each
    found = validate(made, model, GAMMAS)
    assert list(found) == [metric.name for metric in made.validation_metrics]
    batch = collate(made, GAMMAS)
    with torch.no_grad():
        shown = visible(batch["sensors"], batch["hidden"])
        encoded = model(shown).photons_encoded
    codec = model.encoder.features.codec
    off = (encoded - codec.encode_photons(batch["sensors"][..., PHOTONS])).abs()
    wanted = [off[event, batch["hidden"][event]].mean().item() for event in range(4)]
    assert found["photons_error"].tolist() == pytest.approx(wanted, rel=1e-5)


def test_training_begins_at_the_mean_of_the_neighbours():
    made = workload("Inpainter")
    torch.manual_seed(0)
    model = made.model().eval()
    found = validate(made, model, GAMMAS)
    np.testing.assert_allclose(found["photons_error"], found["neighbours_error"], rtol=1e-5)
    assert (found["neighbours_error"] > 0).all()


def test_events_without_light_give_finite_numbers_and_slopes(each):
    made, model = each

    def change(items):
        items[0] = 0
        items[1, :, TIME] = items[1, :, TIME_VALID] = 0
        items[2, 10:] = 0

    events = with_items(GAMMAS, change)
    total, shown = loss(made, model, events, seed=(1,))
    total.backward()
    assert all(torch.isfinite(number) for number in (total, *shown.values()))
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
    found = predict(made, model, events)
    assert found["hidden"][0] == 0
    assert found["dead"][0] == SENSORS
    for photons in (*found["photons"], *found["time_ns"]):
        assert np.isfinite(photons).all()


def test_a_prediction_finds_hidden_and_dead_sensors(each):
    made, model = each
    found = predict(made, model, GAMMAS)
    valid = sensors_of(GAMMAS)[..., PHOTONS_VALID] > 0
    share = made.options.mask if hasattr(made.options, "mask") else made.options.predict_mask
    assert found["hidden"].tolist() == np.round(share * valid.sum(axis=1)).tolist()
    assert found["dead"].tolist() == (~valid).sum(axis=1).tolist()
    for event in range(4):
        dead = found["sensor_id"][event][found["kind"][event] == DEAD]
        assert dead.tolist() == np.flatnonzero(~valid[event]).tolist()


def test_without_a_share_only_dead_sensors_are_found(built):
    made, model = built["Inpainter"]
    made = with_share(made, 0.0)
    found = predict(made, model, GAMMAS)
    assert found["hidden"].tolist() == [0] * 4
    assert all((kinds == DEAD).all() and len(kinds) for kinds in found["kind"])
    whole = make_gammas(3, dead=0)
    found = predict(made, model, whole)
    assert [len(ids) for ids in found["sensor_id"]] == [0, 0, 0]
    assert made.table(whole, found).num_rows == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mask_least": 0.3, "mask_most": 0.2}, "is above mask_most"), ({"predict_mask": 1.0}, "less than 1")],
)
def test_shares_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        InpainterOptions(**options)


def test_an_encoder_that_was_learned_without_truth_starts_a_regressor(built):
    """As train.init_map: {encoder.: encoder.} does it, with all weights of the encoder and no other."""
    _, before = built["MaskedAutoencoder"]
    _, model = build("Regressor")
    there, own = before.state_dict(), model.state_dict()
    match = match_weights(own, there, {"encoder.": "encoder."})
    assert set(match.names) == {name for name in own if name.startswith("encoder.")}
    assert not any(name.startswith("encoder.") for name in match.missing)
    assert all(name.split(".")[0] in ("grids", "hexes") for name in match.unexpected)
    model.load_state_dict({here: there[name] for here, name in match.names.items()}, strict=False)
    items = torch.from_numpy(sensors_of(GAMMAS))
    with torch.no_grad():
        light = before.encoder.features.usual
        model.encoder.features.usual = light
        torch.testing.assert_close(model.encoder(items).tokens, before.encoder(items).tokens)


def some(share=0.03, seed=0):
    rng = np.random.default_rng(seed)
    hidden = (rng.random(VALID.shape) < share) & VALID
    photons = rng.normal(100, 30, VALID.shape).astype(np.float32)
    time = rng.normal(0, 5, VALID.shape).astype(np.float32)
    return hidden, photons, time


AVERAGES = {"neighbours_photons": neighbour_average, "solid_angle_photons": solid_angle_average}


def averages(wanted):
    return {name: each(ITEMS[..., PHOTONS], VALID, wanted, PLACES) for name, each in AVERAGES.items()}


@pytest.fixture(scope="module")
def listed():
    hidden, photons, time = some()
    return hidden, photons, time, hidden_sensor_columns(ITEMS, hidden, photons, time, averages)


def test_lists_hold_one_value_for_each_found_sensor(listed):
    hidden, photons, time, found = listed
    for event in range(4):
        ids = np.flatnonzero(hidden[event] | ~VALID[event])
        known = hidden[event, ids]
        own = {name: found[name][event] for name in LISTS}
        assert {name: values.dtype for name, values in own.items()} == LISTS
        assert own["sensor_id"].tolist() == ids.tolist()
        assert own["kind"].tolist() == np.where(known, HIDDEN, DEAD).tolist()
        assert np.array_equal(own["photons"], photons[event, ids])
        assert np.array_equal(own["time_ns"], time[event, ids])
        truth = np.where(known, ITEMS[event, ids, PHOTONS], np.nan)
        assert np.array_equal(own["true_photons"], truth, equal_nan=True)
        timed = known & (ITEMS[event, ids, TIME_VALID] > 0)
        truth = np.where(timed, ITEMS[event, ids, TIME], np.nan)
        assert np.array_equal(own["true_time_ns"], truth, equal_nan=True)
        assert timed.sum() < known.sum() < len(ids)
    assert np.isfinite(np.concatenate(list(found["true_time_ns"]))).any()
    assert found["hidden"].tolist() == hidden.sum(axis=1).tolist()
    assert found["dead"].tolist() == (~VALID).sum(axis=1).tolist()


def test_averages_are_those_of_the_events(listed):
    hidden, *_, found = listed
    wanted = hidden | ~VALID
    for name, flat in averages(wanted).items():
        np.testing.assert_allclose(np.concatenate(list(found[name])), flat)


@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 1, 1), (3, 3, 3), (0, 2, 0), (5, 0, 1)])
def test_lists_of_any_lengths_belong_to_their_events(counts):
    """Also equal lengths, of which numpy would like to make a table."""
    whole = np.zeros((3, SENSORS, 4), np.float32)
    whole[..., PHOTONS_VALID] = 1
    whole[..., PHOTONS] = np.arange(SENSORS)
    hidden = np.arange(SENSORS) < np.array(counts)[:, None]
    photons = np.tile(np.arange(SENSORS, dtype=np.float32), (3, 1))
    found = hidden_sensor_columns(whole, hidden, photons, photons, lambda _: {})
    for name in LISTS:
        assert found[name].shape == (3,)
        assert [values.shape for values in found[name]] == [(count,) for count in counts]
    assert [values.tolist() for values in found["sensor_id"]] == [list(range(count)) for count in counts]
    assert hidden_sensor_table(GAMMAS.part(0, 3), found).num_rows == sum(counts)


def test_rows_are_those_of_the_reference_in_its_units(listed):
    *_, found = listed
    table = hidden_sensor_table(GAMMAS, found).to_pydict()
    count = sum(map(len, found["sensor_id"]))
    assert all(len(values) == count for values in table.values())
    assert list(zip(table["run_number"], table["event_number"], strict=True)) == [
        (1, event) for event in range(4) for _ in found["sensor_id"][event]
    ]
    flat = {name: np.concatenate(list(found[name])) for name in LISTS}
    assert table["sensor_id"] == flat["sensor_id"].tolist()
    assert table["mask_type"] == flat["kind"].tolist()
    assert table["face"] == face_of()[flat["sensor_id"].astype(int)].tolist()
    np.testing.assert_allclose(table["pred_npho"], flat["photons"])
    np.testing.assert_allclose(table["truth_npho"], flat["true_photons"])
    np.testing.assert_allclose(table["pred_time"], flat["time_ns"] * 1e-9, rtol=1e-6)
    np.testing.assert_allclose(table["truth_time"], flat["true_time_ns"] * 1e-9, rtol=1e-6)
    np.testing.assert_allclose(table["error_npho"], flat["photons"] - flat["true_photons"], rtol=1e-6)
    error = (flat["time_ns"] - flat["true_time_ns"]) * 1e-9
    np.testing.assert_allclose(table["error_time"], error, rtol=1e-5)
    dead = np.array(table["mask_type"]) == DEAD
    for name in ("truth_npho", "truth_time", "error_npho", "error_time"):
        assert np.isnan(np.array(table[name])[dead]).all()
    assert np.isfinite(np.array(table["error_npho"])[~dead]).all()


def test_a_number_of_each_face_is_hidden_the_same_for_the_same_seed():
    made, model = build("Inpainter", predict_hidden={"inner": 10, "top": 1})

    def kill_a_face(items):
        items[:, FACE_IDS["top"]] = 0

    events = with_items(GAMMAS, kill_a_face)
    first, again, other = (predict(made, model, events, seed) for seed in (1, 1, 2))
    faces = np.array(FACES)[face_of()]
    for prediction, expected in ((first, [0] * 4), (predict(made, model, GAMMAS), [1] * 4)):
        lists = zip(prediction["sensor_id"], prediction["kind"], strict=True)
        hidden = [ids[kind == HIDDEN] for ids, kind in lists]
        assert [(faces[ids] == "inner").sum() for ids in hidden] == [10] * 4
        assert [(faces[ids] == "top").sum() for ids in hidden] == expected
        assert {face for ids in hidden for face in faces[ids]} <= {"inner", "top"}
    one, same, another = (np.concatenate(each["sensor_id"]) for each in (first, again, other))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, another)
    assert [each.name for each in made.metrics[-6:]] == [
        f"{method}_mae_{face}"
        for face in ("inner", "top")
        for method in ("photons", "neighbours", "solid_angle")
    ]
    with pytest.raises(ValidationError, match="outer"):
        InpainterOptions(predict_hidden={"middle": 1})
    with pytest.raises(ValidationError, match=r"predict_hidden\.top: 73, .*73 sensors, .*at most 72"):
        InpainterOptions(predict_hidden={"top": 73})


def loss_parts(made, model, batch):
    """Return loss and metrics, and of each event the smooth L1 of the hidden photons and their light."""
    with torch.no_grad():
        total, shown = made.loss(model, batch, torch.Generator())
        found = model(visible(batch["sensors"], batch["hidden"]))
    codec = model.encoder.features.codec
    off = found.photons_encoded - codec.encode_photons(batch["sensors"][..., PHOTONS])
    smooth = torch.nn.functional.smooth_l1_loss(
        off, torch.zeros_like(off), beta=made.options.beta, reduction="none"
    )
    hidden = batch["hidden"]
    pairs = zip(smooth, batch["sensors"][..., PHOTONS], hidden, strict=True)
    return total, shown, [(part[mine], light[mine]) for part, light, mine in pairs]


def test_bright_sensors_weigh_more_by_hand():
    made, model = build("Inpainter", photons_power=0.5, time_weight=0)
    total, _, events = loss_parts(made, model, collate(made, GAMMAS, seed=(3,)))
    weights = [(light.clamp_min(1) + 1) ** 0.5 for _, light in events]
    expected = [float((w * part).sum() / w.sum()) for (part, _), w in zip(events, weights, strict=True)]
    assert float(total) == pytest.approx(np.mean(expected), rel=1e-5)
    assert float(total) != pytest.approx(np.mean([float(part.mean()) for part, _ in events]), rel=1e-2)


def test_learned_uncertainties_of_photons_and_times_by_hand():
    made, model = build("Inpainter", balance="learned")
    with torch.no_grad():
        model.log_variance["photons"].fill_(-1.0)
        model.log_variance["time"].fill_(2.0)
    total, shown, _ = loss_parts(made, model, collate(made, GAMMAS, seed=(3,)))
    expected = shown["photons_loss"] * np.exp(1) - 0.5 + shown["time_loss"] * np.exp(-2) + 1.0
    assert float(total) == pytest.approx(float(expected), rel=1e-5)
    assert float(shown["time_spread"]) == pytest.approx(np.exp(1))
    assert list(build("Inpainter", balance="learned", time_weight=0)[1].log_variance) == ["photons"]


def test_rare_amounts_of_light_weigh_more_by_hand():
    """Of nine events with much light and one with little, the one weighs nine times as much."""
    made, model = build("Inpainter", reweight_light=1.0, time_weight=0)

    def dim(items):
        items[:] = items[:1]
        items[9, :, PHOTONS] *= 0.1

    events = with_items(make_gammas(10), dim)
    made.fit(model, [events.part(0, 4), events.part(4, 10)])
    batch = collate(made, events, seed=(3,))
    total, _, parts = loss_parts(made, model, batch)
    weights = np.array([10 / 18] * 9 + [5.0])
    assert float(total) == pytest.approx(
        np.mean(weights * [float(part.mean()) for part, _ in parts]), rel=1e-4
    )
    assert weights.mean() == pytest.approx(1)
    half, other = build("Inpainter", reweight_light=0.5)
    half.fit(other, [events])
    assert other.light_weight.max() / other.light_weight[other.light_weight > 0].min() == pytest.approx(
        np.sqrt(10), rel=0.1
    )
    assert not hasattr(workload("Inpainter"), "fit")  # nothing is read where nothing is weighed


def test_training_hides_shares_of_the_named_faces_alone_and_a_validation_does_not():
    made = workload("Inpainter", mask_faces={"inner": 0.1, "ds": 0.5}, predict_mask=0.05)
    hidden = collate(made, GAMMAS, seed=(1,))["hidden"].numpy()
    for face, share in {"inner": 0.1, "ds": 0.5, "outer": 0, "us": 0, "top": 0, "bottom": 0}.items():
        ids = FACE_IDS[face]
        assert hidden[:, ids].sum(axis=1).tolist() == np.round(share * VALID[:, ids].sum(axis=1)).tolist()
    assert collate(made, GAMMAS)["hidden"][:, FACE_IDS["top"]].any()


def test_flat_masking_hides_as_many_bright_sensors_as_dark_ones():
    light = np.log10(np.maximum(ITEMS[..., PHOTONS], 1))
    top = light > 0.5 * light.max(axis=1, keepdims=True)  # few sensors, and half of the levels
    options = {"mask_least": 0.01, "mask_most": 0.01}
    for flat in (False, True):
        made = workload("Inpainter", mask_flat=flat, **options)
        hidden = [collate(made, GAMMAS, seed=(seed,))["hidden"].numpy() for seed in range(5)]
        assert {each.sum() for each in hidden} == {np.round(0.01 * VALID.sum(axis=1)).sum()}
        share = np.mean([(each & top).sum() / each.sum() for each in hidden])
        if flat:
            assert 0.4 < share < 0.6
        else:
            assert share == pytest.approx((top & VALID).sum() / VALID.sum(), abs=0.05)
            assert share < 0.3


def test_options_at_their_defaults_are_no_keys():
    for name in ("MaskedAutoencoder", "Inpainter"):
        base = [f"train.workload=crpipe.workloads.xec:{name}"]
        keys = load_config([], base).train_keys()
        assert not {f"model.{each}" for each in LATER} & keys.keys()
        assert "model.photons_power" in load_config([], [*base, "model.photons_power=0.5"]).train_keys()
    assert not [key for key in build("Inpainter")[1].state_dict() if "light" in key or "variance" in key]
