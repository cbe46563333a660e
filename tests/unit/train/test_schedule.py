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


@given(schedules, st.integers(0, 100), st.floats(0, 2))
def test_a_factor_is_between_zero_and_one(schedule, step, progress):
    assert 0.0 <= schedule.factor(step, progress) <= 1.0


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("linear", {0.0: 1.0, 0.3: 1.0, 0.8: 0.525, 1.0: 0.05}),
        ("constant", {0.0: 1.0, 0.3: 1.0, 1.0: 1.0}),
        ("cosine", {0.0: 1.0, 0.5: 0.525, 1.0: 0.05}),
        ("cosine_restarts", {0.0: 1.0, 0.125: 0.525, 0.25: 1.0, 0.625: 0.525, 1.0: 0.05, 1.5: 0.05}),
        ("one_cycle", {0.0: 0.04, 0.15: 0.52, 0.3: 1.0, 0.65: 0.525, 1.0: 0.05, 1.5: 0.05}),
    ],
)
def test_the_values_at_beginning_peak_and_end(kind, wanted):
    schedule = Schedule(10, 0.6, 0.05, kind, 0.04, 0.3)
    warm = 1.0 if kind == "one_cycle" else 0.1  # one_cycle has a rise of its own
    for step, share in ((1000, 1.0), (0, warm)):
        found = {progress: schedule.factor(step, progress) for progress in wanted}
        assert found == pytest.approx({progress: share * value for progress, value in wanted.items()})


ONE_CYCLE = {"pct_start": 0.3, "anneal_strategy": "cos", "cycle_momentum": False}
ONE_CYCLE |= {"max_lr": 1.0, "div_factor": 1 / 0.04, "final_div_factor": 0.04 / 0.001}
PEAK = (0.3 * 201 - 1) / 200  # torch counts its parts in steps: the peak is at pct_start * total_steps - 1


@pytest.mark.parametrize(
    ("schedule", "steps", "kind", "options"),
    [
        (
            Schedule(0, decay_to=0.05, kind="cosine"),
            100,
            "CosineAnnealingLR",
            {"T_max": 100, "eta_min": 0.05},
        ),
        (
            Schedule(0, decay_to=0.05, kind="cosine_restarts", restarts=3),
            100,
            "CosineAnnealingWarmRestarts",
            {"T_0": 25, "eta_min": 0.05},
        ),
        (
            Schedule(0, decay_to=0.001, kind="one_cycle", one_cycle_start=0.04, one_cycle_peak=PEAK),
            200,
            "OneCycleLR",
            {"total_steps": 201, **ONE_CYCLE},
        ),
    ],
)
def test_the_shapes_are_those_of_torch(schedule, steps, kind, options):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)
    own, known = [], []
    for step in range(steps):
        own.append(schedule.factor(step, step / steps))
        known.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert own == pytest.approx(known, abs=1e-9)


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
