"""One batch, trained on again and again: the loss falls, and the time is divided into its parts."""

import pytest
import torch

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ConfigError, CrpipeError, DeviceMemoryError
from crpipe.core.text import NullProgress
from crpipe.inference import probe as module
from crpipe.inference.probe import PhaseLoss, probe_batch, read_batch, render_probe
from crpipe.train.state import TrainState
from crpipe.train.workload import OptimizerSpec, Phase
from toy import RANGES, Toy, ToyOptions, toy_config


class Fitted(Toy):
    """Learns the mean of each event's items, which it is given."""

    def loss(self, model, batch, generator):
        wrong = (model["generator"](batch["noise"]) - batch["mean"]).square().mean()
        return wrong * (torch.nan if self.options.poison_row >= 0 else 1.0), {}

    def phases(self):
        return [Phase("fit", lambda m: m["generator"].parameters(), self.loss, OptimizerSpec("adam", 1e-2))]


class Stuck(Fitted):
    """Trains weights on which the loss does not depend."""

    def phases(self):
        return [Phase("fit", lambda m: m.parameters(), self.loss, OptimizerSpec("sgd", 1e-12))]


class FittedOptions(ToyOptions):
    quiet: bool = True


StuckOptions = FittedOptions


def open_campaign(root, workload, **options):
    return Campaign.open(toy_config(root, train={"workload": f"{__name__}:{workload}"}, model=options))


def probe(campaign, steps=60, **options):
    """Probe the first range; return the result and its text."""
    batch = read_batch(campaign, (), "")
    result = probe_batch(campaign, batch, steps, NullProgress(), **options)
    return result, render_probe(batch, campaign.item, result)


def files_under(root):
    return sorted(str(path) for path in root.rglob("*"))


def test_the_loss_falls_the_time_has_parts_and_nothing_is_written(tmp_path):
    campaign = open_campaign(tmp_path, "Fitted")
    before = files_under(tmp_path)
    result, text = probe(campaign)
    assert files_under(tmp_path) == before
    assert result.losses[0].after < result.losses[0].before / 1.5
    assert {
        "collate",
        "copy to the device",
        "fit: forward",
        "fit: backward and clipping",
        "fit: optimizer",
    } < {*result.parts_ms}
    assert all(ms >= 0 for ms in result.parts_ms.values())
    assert f"one batch from the training shards of {RANGES[0]}: 16 events" in text
    assert "verdict: the loss fell" in text


def test_where_a_step_takes_long_the_first_is_the_measurement(tmp_path, monkeypatch):
    campaign = open_campaign(tmp_path, "Fitted")
    batch, built = read_batch(campaign, (), ""), []
    monkeypatch.setattr(module, "TrainState", lambda *given: built.append(given) or TrainState(*given))
    assert module.measure_rate(campaign, batch).where == "4 steps on this machine"
    assert len(built) == 1  # a large model takes minutes
    monkeypatch.setattr(module, "_MEASURED_S", 0.0)
    rate = module.measure_rate(campaign, batch)
    assert rate.where == "1 step on this machine"
    assert rate.events_per_s > 0


def test_a_loss_that_does_not_fall_says_what_to_look_at(tmp_path):
    _, text = probe(open_campaign(tmp_path, "Stuck"))
    assert "verdict: the loss of fit did not clearly fall" in text
    assert "learning rate" in text


def test_steps_that_are_not_finite_are_counted_and_named_with_anomaly(tmp_path):
    campaign = open_campaign(tmp_path, "Fitted", poison_row=1)
    _, text = probe(campaign, steps=3)
    assert "3 of 3 steps were not finite and changed nothing; find the operation with --anomaly" in text
    with pytest.raises(CrpipeError, match="not a number|not finite|nan"):
        probe(campaign, steps=3, anomaly=True)


def test_all_phases_of_an_adversarial_workload_are_probed(tmp_path):
    campaign = Campaign.open(toy_config(tmp_path))
    result = probe_batch(campaign, read_batch(campaign, (), RANGES[1]), 1, NullProgress())
    assert [one.phase for one in result.losses] == ["critic", "generator"]
    assert all(one.before == one.after for one in result.losses)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2.0, 1.0, "fell"),
        (2.0, 1.99, "fell a little"),
        (1.0, 2.0, "did not fall"),
        (1.0, float("nan"), "did not fall"),
    ],
)
def test_the_verdict_on_a_loss(before, after, said):
    assert PhaseLoss("fit", before, after).verdict() == said


def test_a_profile_is_written_where_it_is_asked_for(tmp_path):
    campaign = open_campaign(tmp_path / "campaign", "Fitted")
    probe(campaign, steps=15, profile=tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 1000


def test_without_shards_the_command_that_makes_them_is_named(tmp_path):
    config = toy_config(tmp_path)
    for name in RANGES:
        config.paths().shard_manifest(name).unlink()
    with pytest.raises(
        ConfigError, match=r"split one: snakemake .*0000000-0000999/manifest.json; .* --in FILE"
    ):
        read_batch(Campaign.open(config), (), "")


def test_a_range_that_is_not_split_names_those_that_are(tmp_path):
    config = toy_config(tmp_path)
    config.paths().shard_manifest(RANGES[1]).unlink()
    with pytest.raises(ConfigError, match=f"not split; split are: {RANGES[0]}, {RANGES[2]}"):
        read_batch(Campaign.open(config), (), RANGES[1])


def test_too_little_memory_of_a_gpu_names_the_keys(tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    campaign = open_campaign(tmp_path, "Fitted")
    monkeypatch.setattr(torch.Tensor, "backward", full)
    with pytest.raises(DeviceMemoryError, match=r"lower load.max_items \([\d,]+\), or set"):
        probe(campaign)


def test_the_batch_is_that_of_the_configuration(tmp_path):
    campaign = Campaign.open(toy_config(tmp_path, load={"batch_size": 30}))
    assert len(read_batch(campaign, (), "").events) == pytest.approx(30, abs=2)
