"""Validation, the best checkpoint, early stopping, and what may change without changing a weight."""

import json
import math
import shutil

import pytest
import torch

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import CheckpointError, ConfigError, PluginError, ShardError
from crpipe.core.files import sha256
from crpipe.core.journal import Journal
from crpipe.events.layout import Metric
from crpipe.setup.compatibility import check_fit
from crpipe.train.checkpoints import load
from crpipe.train.metrics_log import read_metrics
from crpipe.train.validation import Validator, is_better
from models import interrupted, trained
from toy import RANGES, FittedToy, Toy, make_events, toy_config, write_shards

FIRST, SECOND, _ = RANGES
VALIDATED = {"validate_every": 2, "validate_events": 40}


def rows_of(config, name=FIRST):
    rows = read_metrics(config.paths().store(name) / "metrics.jsonl")
    return [row for row in rows if "validation/score" in row]


def best_of(config, name=FIRST):
    return json.loads(config.paths().best_receipt(name).read_text())


def test_validation_falls_on_its_steps_and_on_the_end_of_the_link(tmp_path):
    config = toy_config(tmp_path, train={**VALIDATED, "validate_every": 3})
    receipt, _, _ = trained(config)
    assert [row["step"] for row in rows_of(config)] == [3, 6, receipt["step"]]
    names = {"critic/loss", "critic/gap", "generator/loss", "score", "drawn"}
    assert {f"validation/{name}" for name in names} <= {*rows_of(config)[0]}
    drawn = {row["validation/drawn"] for row in rows_of(config)}
    assert len(drawn) == 1  # the same random numbers every time: curves show the model alone


def test_every_link_is_judged_on_the_same_events(tmp_path):
    config = toy_config(tmp_path, model={"rate": 0.0}, train=VALIDATED)
    trained(config)
    trained(config, SECOND)
    first, second = rows_of(config)[-1], rows_of(config, SECOND)[-1]
    assert first["validation/critic/loss"] == second["validation/critic/loss"]


def test_the_best_checkpoint_is_a_checkpoint_and_the_next_link_starts_from_the_last(tmp_path):
    config = toy_config(tmp_path, train={**VALIDATED, "monitor": "generator/loss"})
    receipt, _, _ = trained(config)
    best = best_of(config)
    values = {row["step"]: row["validation/generator/loss"] for row in rows_of(config)}
    assert best["value"] == min(values.values()) == values[best["step"]]
    assert (best["range"], best["key"], best["metric"]) == (FIRST, receipt["key"], "generator/loss")
    path = config.paths().store(FIRST) / best["checkpoint"]
    assert sha256(path) == best["sha256"]
    assert load(path)["counters"]["step"] == best["step"]
    assert trained(config, SECOND)[0]["parent"] == receipt["sha256"]


def test_a_link_without_events_takes_over_the_best_checkpoint_of_the_link_before(tmp_path):
    """After it, ``best`` means what it meant before: its own last weights are the last of the link before."""
    config = toy_config(tmp_path, train={**VALIDATED, "monitor": "generator/loss"})
    trained(config)
    before = best_of(config)
    assert before["step"] < json.loads(config.paths().receipt(FIRST).read_text())["step"]
    data = json.loads((config.paths().shards(SECOND) / "manifest.json").read_text())["data"]
    write_shards(config.paths().shards(SECOND), [("train-00000", "train", make_events(0, 1))], data)
    receipt, checkpoint, _ = trained(config, SECOND)
    assert receipt["step"] == json.loads(config.paths().receipt(FIRST).read_text())["step"]
    best = best_of(config, SECOND)
    assert {name: best[name] for name in ("step", "value", "metric")} == {
        name: before[name] for name in ("step", "value", "metric")
    }
    ours, theirs = (
        load(config.paths().store(row["range"]) / row["checkpoint"])["average"] for row in (best, before)
    )
    assert ours
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    taken = load(config.paths().store(SECOND) / best["checkpoint"])["counters"]
    assert f"-{taken['range_step']:010d}-" in best["checkpoint"]  # what `check` expects
    assert any(not torch.equal(ours[name], checkpoint["average"][name]) for name in ours)
    texts = [
        path.read_text() for path in (config.paths().receipt(SECOND), config.paths().best_receipt(SECOND))
    ]
    config.paths().receipt(SECOND).unlink()
    config.paths().best_receipt(SECOND).unlink()
    assert "adopted" in trained(config, SECOND)[2]
    paths = (config.paths().receipt(SECOND), config.paths().best_receipt(SECOND))
    assert [path.read_text() for path in paths] == texts


def test_a_best_checkpoint_of_a_later_step_than_this_job_found_is_deleted_at_the_end(tmp_path):
    """An interrupted job left it that validated at other steps."""
    config = toy_config(tmp_path, model={"rate": 0.0}, train={"validate_every": 1, "monitor": "score"})
    interrupted(config)
    (path,) = config.paths().store(FIRST).glob("best-*")
    later = path.with_name(path.name.replace("-0000000001-", "-0000000099-"))
    later.write_bytes(path.read_bytes())
    trained(config)
    assert not later.exists()
    assert best_of(config)["checkpoint"] == path.name


def test_an_adopted_checkpoint_gets_both_receipts_back(tmp_path):
    site = {**VALIDATED, "monitor": "score", "early_stopping_patience": 1, "passes_per_link": 3}
    config = toy_config(tmp_path, model={"rate": 0.0}, train=site)
    receipt, _, _ = trained(config)
    assert "stopped" in receipt
    paths = [config.paths().receipt(FIRST), config.paths().best_receipt(FIRST)]
    texts = [path.read_text() for path in paths]
    for path in paths:
        path.unlink()
    assert "adopted" in trained(config)[2]
    assert [path.read_text() for path in paths] == texts


def test_a_link_without_progress_ends_early_with_the_reason(tmp_path):
    site = {"validate_every": 1, "monitor": "score", "early_stopping_patience": 3, "passes_per_link": 3}
    config = toy_config(tmp_path, model={"rate": 0.0}, train=site)
    receipt, _, told = trained(config)
    assert receipt["step"] == 4
    assert receipt["stopped"].startswith("no better validation/score for 3 validations; best ")
    assert receipt["stopped"].endswith(" at step 1")
    assert receipt["stopped"] in told
    noted = [row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "stopped"]
    assert [row["reason"] for row in noted] == [receipt["stopped"]]
    assert trained(config, SECOND)[0]["parent"] == receipt["sha256"]


def test_a_plateau_lowers_the_learning_rates_and_a_resume_goes_on_so(tmp_path):
    site = {
        "validate_every": 1,
        "monitor": "score",
        "schedule": {"plateau_after": 2, "plateau_least": 0.3},
        "passes_per_link": 2,
    }
    whole = toy_config(tmp_path / "whole", model={"rate": 0.0}, train=site)
    _, checkpoint, told = trained(whole)
    assert set(checkpoint["shares"].values()) == {0.3}
    assert "no better validation 2 times: learning rates fall to critic 0.5, generator 0.5" in told
    killed = toy_config(tmp_path / "killed", model={"rate": 0.0}, train=site)
    interrupted(killed)
    interrupted(killed)
    assert trained(killed)[0]["sha256"] == trained(whole)[0]["sha256"]


def test_a_plateau_makes_what_is_validated_part_of_the_checkpoint(tmp_path):
    site = {"validate_every": 1, "monitor": "score"}
    plain, other = (
        Campaign.open(toy_config(tmp_path, train={**site, "validate_every": steps})) for steps in (1, 2)
    )
    assert plain.fingerprint == other.fingerprint
    plateau, often = (
        Campaign.open(
            toy_config(tmp_path, train={**site, "validate_every": steps, "schedule": {"plateau_after": 3}})
        )
        for steps in (1, 2)
    )
    assert len({plain.fingerprint, plateau.fingerprint, often.fingerprint}) == 3


def test_a_value_that_is_not_finite_is_no_improvement(tmp_path):
    site = {"validate_every": 1, "monitor": "score", "early_stopping_patience": 2}
    config = toy_config(tmp_path, model={"validation_nan": True}, train=site)
    receipt, _, told = trained(config)
    assert receipt["stopped"] == "no better validation/score for 2 validations; never finite"
    assert "not finite: validation/score" in told
    assert not config.paths().best_receipt(FIRST).exists()


@pytest.mark.parametrize(
    ("better", "ideal", "best"), [("low", None, 1.0), ("high", None, 4.0), ("near", 3.0, 2.9)]
)
def test_better_is_what_the_metric_declares(better, ideal, best):
    metric, found = Metric("m", "m", better=better, ideal=ideal), None
    for value in (2.0, 4.0, 2.9, math.nan, math.inf, 1.0):
        if is_better(metric, value, found):
            found = value
    assert found == best
    assert not is_better(metric, best, best)


def test_weights_are_put_back_also_when_validation_raises(tmp_path, monkeypatch):
    measure, states = Validator.measure, []

    def weights(validator):
        return {name: value.clone() for name, value in validator._state.model.state_dict().items()}

    def failing(self):
        before = weights(self)
        with pytest.raises(PluginError, match="toy:Toy.validate failed on 40 events"):
            measure(self)
        states.append((before, weights(self), self._state.model.training))
        return {}

    monkeypatch.setattr(Toy, "validate", lambda *_: 1 / 0)
    monkeypatch.setattr(Validator, "measure", failing)
    trained(toy_config(tmp_path, train=VALIDATED))
    for before, after, training in states:
        assert training
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_metric_that_nobody_measures_is_refused_with_the_legal_ones(tmp_path):
    config = toy_config(tmp_path, train={**VALIDATED, "monitor": "auc"})
    words = "monitor: auc is not measured by toy:Toy; legal values: critic/loss, generator/loss, score, drawn"
    with pytest.raises(ConfigError, match=words):
        trained(config)
    with pytest.raises(ConfigError, match=words):
        check_fit(config)


def test_the_check_leaves_a_workload_that_waits_for_its_tables_to_the_training(tmp_path, monkeypatch):
    config = toy_config(tmp_path, train={**VALIDATED, "monitor": "generator/loss"})
    monkeypatch.setattr(Toy, "phases", lambda _: 1 / 0)
    with pytest.raises(PluginError, match="toy:Toy.phases failed"):
        check_fit(config)
    monkeypatch.setattr(Toy, "needs", (), raising=False)
    monkeypatch.setattr(Toy, "use", lambda *_: None, raising=False)
    assert "toy:Toy" in check_fit(config)


def test_an_empty_sample_is_refused_before_the_first_step(tmp_path):
    config = toy_config(tmp_path, train=VALIDATED)
    folder = config.paths().shards(FIRST)
    data = json.loads((folder / "manifest.json").read_text())["data"]
    write_shards(folder, [("train-00000", "train", make_events(50, 5))], data)
    with pytest.raises(ConfigError, match=r"no validation events in .*; raise split.validation_fraction"):
        trained(config)


def test_held_out_shards_of_another_configuration_are_refused(tmp_path):
    config = toy_config(tmp_path, train=VALIDATED)
    trained(config)
    write_shards(config.paths().shards(FIRST), [], "0123456789abcdef")
    with pytest.raises(ShardError, match="made under other data keys"):
        trained(config, SECOND)


def test_the_interval_of_the_log_changes_no_weight(tmp_path):
    model = {"throttle_above": -1e9}  # throttled at every decision
    found = []
    for every in (1, 4, 20):
        keys = {"log_steps": every, "passes_per_link": 9}
        config = toy_config(tmp_path / str(every), model=model, train=keys)
        found.append(trained(config)[1])
    changed = toy_config(tmp_path / "changed", model=model, train={**keys, "log_steps": 1})
    interrupted(changed)
    found.append(trained(toy_config(tmp_path / "changed", model=model, train={**keys, "log_steps": 5}))[1])
    for other in found[1:]:
        assert other["shares"] == found[0]["shares"] == {"critic": 0.2, "generator": 1.0}
        assert other["counters"] == found[0]["counters"]
        assert all(torch.equal(other["model"][name], value) for name, value in found[0]["model"].items())


def test_a_lost_best_checkpoint_is_named_at_the_resume(tmp_path):
    config = toy_config(tmp_path, train={"validate_every": 1, "monitor": "score"})
    interrupted(config)
    for path in config.paths().store(FIRST).glob("best-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="the best checkpoint of train.monitor"):
        trained(config)


def test_a_profile_is_written_where_it_is_asked_for(tmp_path):
    config = toy_config(tmp_path)
    assert "the trace" not in trained(config)[2]
    assert "1 step; the trace" in trained(config, SECOND, profile_steps=1)[2]


FITTED = {"workload": "toy:FittedToy"}


def fitted_of(checkpoint):
    return {
        name: checkpoint["model"][f"fitted.{name}"].tolist() for name in ("events", "calibrated", "factor")
    }


def test_without_validation_events_nothing_is_calibrated_and_a_person_is_told(tmp_path):
    config = toy_config(tmp_path, train=FITTED)
    folder = config.paths().shards(FIRST)
    data = json.loads((folder / "manifest.json").read_text())["data"]
    write_shards(folder, [("train-00000", "train", make_events(100, 1))], data)
    _, checkpoint, told = trained(config)
    assert fitted_of(checkpoint) == {"events": 70, "calibrated": 0, "factor": 1}
    assert "no validation events: predicted uncertainties are not calibrated" in told


def test_who_has_nothing_to_calibrate_predicts_no_events_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(FittedToy, "calibration_events", 0)
    monkeypatch.setattr(FittedToy, "deviations", lambda *_: pytest.fail("called"))
    _, checkpoint, told = trained(toy_config(tmp_path, train=FITTED))
    assert fitted_of(checkpoint) == {"events": 70, "calibrated": 0, "factor": 1}
    assert "calibrated" not in told


def test_a_fit_sees_training_events_alone_and_a_calibration_validation_events_alone(tmp_path, monkeypatch):
    """The test part, which judges, is in neither."""
    config = toy_config(tmp_path, train=FITTED)
    folder, parts = config.paths().shards(FIRST), ("train", "validation", "test")
    data = json.loads((folder / "manifest.json").read_text())["data"]
    shards = [(f"{part}-00000", part, make_events(100, seed)) for seed, part in enumerate(parts, 1)]
    write_shards(folder, shards, data)
    seen = {"fit": set(), "deviations": set()}
    fit, deviations = FittedToy.fit, FittedToy.deviations

    def fit_of(self, model, blocks):
        blocks = list(blocks)
        seen["fit"] |= {int(seed) for events in blocks for seed in events.columns["source_file"]}
        fit(self, model, blocks)

    def deviations_of(self, model, events, generator):
        seen["deviations"] |= {int(seed) for seed in events.columns["source_file"]}
        return deviations(self, model, events, generator)

    monkeypatch.setattr(FittedToy, "fit", fit_of)
    monkeypatch.setattr(FittedToy, "deviations", deviations_of)
    trained(config)
    assert seen == {"fit": {1}, "deviations": {2}}


def test_who_neither_validates_nor_calibrates_needs_no_validation_shards(tmp_path):
    """A later link goes on where the first link's shards are gone."""
    config = toy_config(tmp_path)
    trained(config)
    shutil.rmtree(config.paths().shards(FIRST))
    trained(config, SECOND)


def without_training_events(config):
    """Leave the first range nothing but validation events."""
    folder = config.paths().shards(FIRST)
    manifest = json.loads((folder / "manifest.json").read_text())
    write_shards(folder, [("validation-00000", "validation", make_events(60, 2))], manifest["data"])


def test_a_fit_waits_for_a_link_with_events(tmp_path):
    config = toy_config(tmp_path, train=FITTED)
    without_training_events(config)
    assert fitted_of(trained(config)[1])["events"] == 0
    _, checkpoint, _ = trained(config, SECOND)
    assert fitted_of(checkpoint)["events"] == 70


@pytest.mark.parametrize(("method", "text"), [("fit", "fit failed"), ("calibrate", "calibrate failed")])
def test_an_error_of_a_fit_names_the_workload(tmp_path, monkeypatch, method, text):
    def fails(*_):
        raise ValueError("no such number")

    monkeypatch.setattr(FittedToy, method, fails)
    with pytest.raises(PluginError, match=f"toy:FittedToy.{text}.*no such number"):
        trained(toy_config(tmp_path, train=FITTED))


def test_a_training_from_weights_has_what_the_other_one_fitted(tmp_path):
    """The fit of the new data is made, and replaced where the other training has it under that name."""
    first = toy_config(tmp_path / "first", train=FITTED)
    _, checkpoint, _ = trained(first)
    source = first.paths().receipt(FIRST)
    second = toy_config(tmp_path / "second", seed=7, train={**FITTED, "pretrained": str(source)})
    centres = [each["model"]["fitted.centre"].tolist() for each in (checkpoint, trained(second)[1])]
    assert centres[0] == centres[1]
    late = toy_config(tmp_path / "late", train={**FITTED, "pretrained": str(source)})
    without_training_events(late)
    assert trained(late)[1]["model"]["fitted.centre"].tolist() == centres[0]
    assert trained(late, SECOND)[1]["model"]["fitted.centre"].tolist() == centres[0]
    plain = toy_config(tmp_path / "plain")
    trained(plain)
    mapped = {"pretrained": str(plain.paths().receipt(FIRST)), "init_map": {"critic.": "critic."}}
    assert fitted_of(trained(toy_config(tmp_path / "third", train={**FITTED, **mapped}))[1])["events"] == 70
