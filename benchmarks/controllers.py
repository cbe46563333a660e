"""Which rule against a strong critic helps: cr_muons', crpipe's, or none, on the same events and steps.

One command: ``python benchmarks/controllers.py`` (ten minutes on one thread). Two recipes, each with every
rule and two seeds, are trained on the events of benchmarks/physics.py and judged alike; the figure
docs/figures/controllers.svg shows the Wasserstein gap of the steps. A rule that would not have acted on the
gaps of the training without a rule leaves that training as it is, bit for bit: it is not repeated.

- cr_muons, every step, from the mean gap of the last 500 steps: below -5, one critic step fewer and the
  weight of the penalty times 1.5 (at least 1 step, at most 20); above 10, the weight times 0.9 (at least 10).
  Nothing is ever raised again.
- crpipe (``model.critic_throttle_above``), every 20 steps, from the mean gap since the last decision: above
  1, half the critic's learning rate, down to a twentieth.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.config.loading import validate
from crpipe.events.batch import Cursor
from crpipe.report.figure_style import COLOURS, new_figure, save, style
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.schedule import Schedule
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import build_workload
from physics import BATCH, LoadedModel, generator_of, judge, simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.workloads.muons import MuonGan

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "controllers.svg"
MUONS = "crpipe.workloads.muons:MuonGan"
TRAINING, EVALUATED = 100_000, 10_000
LAUNCHER = {
    "generator_learning_rate": 5e-5,
    "critic_learning_rate": 5e-5,
    "critic_steps": 5,
    "penalty": "gradient",
    "penalty_sides": "two",
    "gp_every": 2,
    "gp_max_pairs": 4096,
}
RECIPES: dict[str, dict[str, Any]] = {
    "the launcher's recipe": LAUNCHER,
    "the same with a critic 200 times as fast": {**LAUNCHER, "critic_learning_rate": 1e-2},
}
RULES = ("none", "cr_muons", "crpipe")
LINES = ("-", "--", ":")
THROTTLE_ABOVE = 1.0


class EarlierRule:
    """The rule of cr_muons, with the limits of its launcher."""

    low, high, factor, down = -5.0, 10.0, 1.5, 0.9
    least_steps, least_weight, most_weight = 1, 10.0, 20.0

    def __init__(self, workload: MuonGan, state: TrainState) -> None:
        self.workload, self.state = workload, state
        self.gaps: collections.deque[float] = collections.deque(maxlen=500)
        self.acted = 0

    def decide(self, gap: float) -> None:
        """Change the critic's steps and the penalty's weight for the steps after this one."""
        self.gaps.append(gap)
        mean = sum(self.gaps) / len(self.gaps)
        options = self.workload.options
        steps, weight = options.critic_steps, options.penalty_weight
        if mean < self.low:
            steps, weight = max(self.least_steps, steps - 1), min(self.most_weight, weight * self.factor)
        elif mean > self.high:
            weight = max(self.least_weight, weight * self.down)
        if (steps, weight) == (options.critic_steps, options.penalty_weight):
            return
        self.acted += 1
        self.workload.options = options.model_copy(update={"critic_steps": steps, "penalty_weight": weight})
        self.state.phases = [
            dataclasses.replace(phase, repeat=steps) if phase.name == "critic" else phase
            for phase in self.state.phases
        ]


def train(
    recipe: dict[str, Any], rule: str, events: Events, seed: int, steps: int
) -> tuple[LoadedModel, NDArray[np.float64], int]:
    """Train by the trainer's own steps; give the model, the gap of each step, how often the rule acted."""
    throttle = {"critic_throttle_above": THROTTLE_ABOVE} if rule == "crpipe" else {}
    train_keys = {"workload": MUONS, "fresh_batches": False}
    config = validate({"seed": seed, "train": train_keys, "model": {**recipe, **throttle}})
    workload: Any = build_workload(config.train.workload, config.options())
    torch.manual_seed(seed)
    device = torch.device("cpu")
    state = TrainState(workload.model(), workload.phases(), seed, device)
    world, meter, recent = World(0, 1, device), Meter(device), Meter(device)
    stepper = Stepper(config.train, config.load, workload, state, world, meter, "", recent)
    schedule, rng = Schedule.of(config.train), np.random.default_rng(seed)
    earlier, lowered, gaps, muons = EarlierRule(workload, state), 0, [], 0
    started = time.process_time()
    for step in range(steps):
        batch = events.take(rng.integers(0, len(events), BATCH))
        stepper.step([(batch, Cursor(0, step))], (seed,), schedule.factor(step, step / steps))
        state.counters.step += 1
        muons += int(workload.size(batch).sum())
        gaps.append(meter.read(world)["critic/wasserstein"])
        if rule == "cr_muons":
            earlier.decide(gaps[-1])
        elif rule == "crpipe" and state.counters.step % config.train.throttle_steps == 0:
            lowered += len(state.throttle(recent.read(world)))
    generate = generator_of(workload, state, seed)
    model = LoadedModel(generate, steps, muons, time.process_time() - started)
    return model, np.array(gaps), earlier.acted + lowered


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The gaps of the steps of one training, and its numbers."""

    gaps: NDArray[np.float64]
    numbers: dict[str, float]


def outcome(
    recipe: dict[str, Any], rule: str, events: Events, truth: Events, seed: int, steps: int
) -> Outcome:
    """Train once and judge."""
    model, gaps, acted = train(recipe, rule, events, seed, steps)
    numbers = judge(truth, model.generate)
    row = {"acted": acted, "gap_lowest": gaps.min(), "gap_highest": gaps.max()}
    row |= {"gap_mean_lowest": min(gaps[: n + 1][-500:].mean() for n in range(len(gaps)))}
    row |= {"gap_end": gaps[-100:].mean(), "cpu_s": model.seconds}
    row |= {key: numbers[key] for key in ("auc_event", "w1_log_energy", "w1_radius_m")}
    return Outcome(gaps, {name: round(float(value), 4) for name, value in row.items()})


def would_act(rule: str, recipe: dict[str, Any], gaps: NDArray[np.float64]) -> bool:
    """Whether a rule would have changed anything, on the gaps of a training without one."""
    if rule == "none":
        return True
    if rule == "crpipe":
        every = validate({"train": {"workload": MUONS}}).train.throttle_steps
        parts = np.split(gaps, range(every, len(gaps), every))
        return any(part.mean() > THROTTLE_ABOVE for part in parts)
    workload: Any = build_workload(MUONS, recipe)
    earlier = EarlierRule(workload, TrainState(workload.model(), workload.phases(), 0, torch.device("cpu")))
    for gap in gaps:
        earlier.decide(float(gap))
    return earlier.acted > 0


def plot(found: dict[str, dict[str, list[NDArray[np.float64]]]], path: Path) -> None:
    """Plot the gap of every training, as a mean over 20 steps."""
    with style():
        figure = new_figure(3.2)
        for axes, (recipe, rules) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
            for colour, line, (rule, seeds) in zip(COLOURS, LINES, rules.items(), strict=False):
                for number, gaps in enumerate(seeds):
                    whole = gaps[: len(gaps) // 20 * 20].reshape(-1, 20).mean(axis=1)
                    label = rule if number == 0 else None
                    axes.plot(
                        20 * np.arange(1, len(whole) + 1), whole, color=colour, label=label, linestyle=line
                    )
            axes.set(xlabel="step", ylabel="Wasserstein gap", title=recipe)
            if max(steps.max() for seeds in rules.values() for steps in seeds) > 10:
                axes.set_yscale("symlog", linthresh=1.0)
            axes.legend(title="rule")
        save(figure, path)


def main() -> None:
    """Train and judge everything, and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    events = simulate(TRAINING, seed=1)
    truth = simulate(EVALUATED, seed=2)
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    for name, recipe in RECIPES.items():
        for seed in range(options.seeds):
            plain: Outcome | None = None
            for rule in RULES:
                if plain is None or would_act(rule, recipe, plain.gaps):
                    made = outcome(recipe, rule, events, truth, seed, options.steps)
                    plain = plain or made
                else:
                    made = plain
                found.setdefault(name, {}).setdefault(rule, []).append(made.gaps)
                print(json.dumps({"recipe": name, "rule": rule, "seed": seed, **made.numbers}), flush=True)
    plot(found, options.figure)


if __name__ == "__main__":
    main()
