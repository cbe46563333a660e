"""The learning rate depends on where training stands, and on nothing else."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core.errors import ConfigError
from crpipe.core.text import NullProgress
from crpipe.setup.compatibility import check_fit
from crpipe.train.checkpoints import load
from crpipe.train.metrics_log import read_metrics
from crpipe.train.schedule import Schedule, Schedules
from models import train_range
from toy import RANGES, Toy, ToyOptions, toy_config

shares = st.floats(0, 1)
schedules = st.builds(
    Schedule,
    warmup_steps=st.integers(0, 50),
    decay_from=shares,
    decay_to=shares,
    kind=st.sampled_from(["linear", "constant", "cosine", "cosine_restarts", "one_cycle"]),
    one_cycle_start=shares,
    one_cycle_peak=st.floats(0.01, 0.99),
)


def old_formula(schedule, step, progress):
    """Return the linear schedule as it was before there were others."""
    warm = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    if progress <= schedule.decay_from:
        return warm
    fall = min(1.0, (progress - schedule.decay_from) / (1.0 - schedule.decay_from))
    return warm * (1.0 - fall * (1.0 - schedule.decay_to))


@given(st.integers(0, 50), shares, shares, st.integers(0, 100), shares)
def test_linear_is_bit_for_bit_what_it_was(warmup, decay_from, decay_to, step, progress):
    schedule = Schedule(warmup, decay_from, decay_to)
    assert schedule.factor(step, progress) == old_formula(schedule, step, progress)


@given(schedules, st.integers(0, 100), st.floats(0, 2))
def test_a_factor_is_between_zero_and_one(schedule, step, progress):
    assert 0.0 <= schedule.factor(step, progress) <= 1.0


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("linear", {0.0: 1.0, 0.3: 1.0, 1.0: 0.05}),
        ("constant", {0.0: 1.0, 0.3: 1.0, 1.0: 1.0}),
        ("cosine", {0.0: 1.0, 0.5: 0.525, 1.0: 0.05}),
        ("cosine_restarts", {0.0: 1.0, 0.125: 0.525, 0.25: 1.0, 0.625: 0.525, 1.0: 0.05, 1.5: 0.05}),
        ("one_cycle", {0.0: 0.04, 0.15: 0.52, 0.3: 1.0, 0.65: 0.525, 1.0: 0.05, 1.5: 0.05}),
    ],
)
def test_the_values_at_beginning_peak_and_end(kind, wanted):
    schedule = Schedule(10, 0.6, 0.05, kind, 0.04, 0.3)
    found = {progress: schedule.factor(1000, progress) for progress in wanted}
    assert found == pytest.approx(wanted)
    first = {"one_cycle": 0.04}.get(kind, 0.1)  # one_cycle has a rise of its own
    assert schedule.factor(0, 0.0) == pytest.approx(first)


def rates_of_torch(build, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = build(optimizer)
    found = []
    for step in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < steps - 1:
            scheduler.step()
    return found


def test_cosine_is_that_of_torch():
    def build(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100, eta_min=0.05)

    schedule = Schedule(0, decay_to=0.05, kind="cosine")
    own = [schedule.factor(step, step / 100) for step in range(101)]
    assert own == pytest.approx(rates_of_torch(build, 101), abs=1e-9)


def test_cosine_with_restarts_is_that_of_torch():
    def build(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=25, eta_min=0.05)

    schedule = Schedule(0, decay_to=0.05, kind="cosine_restarts", restarts=3)
    own = [schedule.factor(step, step / 100) for step in range(100)]
    assert own == pytest.approx(rates_of_torch(build, 100), abs=1e-9)
    assert schedule.factor(100, 1.0) == pytest.approx(0.05)


def test_one_cycle_is_that_of_torch():
    """Torch counts its parts in steps: the peak is at pct_start * total_steps - 1."""
    steps, share = 201, 0.3

    def build(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=1.0,
            total_steps=steps,
            pct_start=share,
            anneal_strategy="cos",
            cycle_momentum=False,
            div_factor=1 / 0.04,
            final_div_factor=0.04 / 0.001,
        )

    peak = (share * steps - 1) / (steps - 1)
    schedule = Schedule(0, decay_to=0.001, kind="one_cycle", one_cycle_start=0.04, one_cycle_peak=peak)
    own = [schedule.factor(step, step / (steps - 1)) for step in range(steps)]
    assert own == pytest.approx(rates_of_torch(build, steps), abs=1e-9)


@pytest.mark.parametrize(("horizon", "refused"), [(0, True), (3, False)])
def test_a_phase_that_ends_alone_needs_the_number_of_ranges(tmp_path, horizon, refused):
    train = toy_config(tmp_path, train={"schedule": {"shape": "constant", "horizon_ranges": horizon}}).train
    ending = {"head": Schedule(kind="cosine"), "rest": None}
    if refused:
        with pytest.raises(ConfigError, match=r"horizon_ranges: the learning rate of head ends"):
            Schedules.of(train, ending)
    else:
        common, own = Schedules.of(train, ending).factors(50, 1.0)
        assert (common, own) == (1.0, {"head": pytest.approx(0.05)})
    never = {"head": Schedule(kind="constant")}
    assert Schedules.of(train, never).factors(9, 0.5)[1] == {"head": 1.0}


@pytest.mark.parametrize("decay_from", [0.6, 1.0])
@pytest.mark.parametrize("kind", ["linear", "constant", "cosine", "one_cycle"])
def test_configuration_and_schedule_agree_on_what_ends(tmp_path, kind, decay_from):
    config = toy_config(tmp_path, train={"schedule": {"shape": kind, "decay_from": decay_from}})
    assert Schedule.of(config.train).ends == config.schedule_ends()


class OwnRates(Toy):
    """The critic's learning rate never falls."""

    def phases(self):
        critic, generator = super().phases()
        return [replace(critic, schedule=Schedule(kind="constant")), generator]


OwnRatesOptions = ToyOptions


def test_a_schedule_of_its_own_is_used_and_logged(tmp_path):
    train = {
        "workload": f"{__name__}:OwnRates",
        "schedule": {"shape": "cosine", "warmup_steps": 0},
        "log_steps": 1,
    }
    config = toy_config(tmp_path, train=train)
    for name in RANGES:
        train_range(config, name, NullProgress())
    rows = [row for name in RANGES for row in read_metrics(config.paths().store(name) / "metrics.jsonl")]
    assert {row["learning_rate/critic"] for row in rows} == {1.0}
    rates = [row["learning_rate"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0
    assert rates[-1] < 0.1
    receipt = json.loads(config.paths().receipt(RANGES[-1]).read_text())
    optimizers = load(config.paths().store(RANGES[-1]) / receipt["checkpoint"])["optimizers"]
    used = {name: state["param_groups"][0]["lr"] for name, state in optimizers.items()}
    assert used == {"critic": 1e-3, "generator": pytest.approx(1e-3 * rates[-1])}


def test_a_schedule_that_ends_alone_is_refused_before_any_job(tmp_path):
    class Falling(OwnRates):
        def phases(self):
            return [replace(phase, schedule=Schedule(kind="cosine")) for phase in super().phases()]

    globals().update(Falling=Falling, FallingOptions=ToyOptions)
    train = {"workload": f"{__name__}:Falling", "schedule": {"shape": "constant"}}
    with pytest.raises(ConfigError, match="the learning rate of critic, generator ends with the campaign"):
        check_fit(toy_config(tmp_path, train=train))
