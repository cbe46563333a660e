"""How good bundles are after a given time of training, beside the earlier system and the floor.

One command: ``python benchmarks/physics.py --budget 600 --seeds 2 --cr-muons PATH`` (a clone of its public
repository; without it only crpipe is measured). All systems get the same events, the same CPU seconds on one
thread and the same evaluation; the floor is a second simulation of the validation events.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from steppers import stepper_of

from crpipe.events.batch import Cursor, Events, offsets
from crpipe.train.schedule import Schedule
from crpipe.workloads.muons.layout import PRIMARY_IDS
from crpipe.workloads.muons.scoring import classify, metrics
from crpipe.workloads.muons.scoring.score import sample_of
from crpipe.workloads.muons.simulator.files import resimulate
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import sample_primaries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.train.state import TrainState

# An almost flat spectrum: each decade of primary energy counts the same, and 6 in 10 rows have no muon.
SOURCE = AirShowersOptions(energy_min_gev=1e3, energy_max_gev=1e8, spectral_index=1.1)
TRAINING, VALIDATION, EVALUATED = 300_000, 80_000, 40_000
BATCH = 640
GOALS = {
    "auc_full": (0.52, "full AUC"),
    "w1_log_energy": (0.027, "W1(log E)"),
    "auc_multiplicity": (0.51, "multiplicity AUC"),
}
# Given true multiplicities, or none: generates for the conditions of the events.
Generate = Callable[[Events, "NDArray[np.int64] | None"], Events]


@dataclass(frozen=True)
class Place:
    """Where crpipe trains, and with how many events in a batch; on a GPU the time is that of the wall."""

    device: str = "cpu"
    batch: int = BATCH

    def clock(self) -> float:
        """Give the seconds that count."""
        return time.process_time() if self.device == "cpu" else time.perf_counter()


CPU = Place()


@dataclass(frozen=True)
class LoadedModel:
    """A trained system: its steps, and the data's muons that it trained on, in ``seconds`` of CPU time."""

    generate: Generate
    steps: int
    muons: int
    seconds: float


def simulate(rows: int, seed: int) -> Events:
    """Simulate showers, each at one random depth."""
    rng = np.random.default_rng(seed)
    primaries = sample_primaries(rng, SOURCE, rows)
    columns: dict[str, Any] = {field.name: np.full(rows, seed, np.uint64) for field in PRIMARY_IDS}
    columns["primary_minor_id"] = np.arange(rows, dtype=np.uint64)
    columns |= {
        "energy_gev": primaries.energy_gev.astype(np.float32),
        "zenith_rad": np.arccos(primaries.cos_zenith).astype(np.float32),
        "mass_number": primaries.mass_number.astype(np.float32),
        "depth_m": rng.uniform(SOURCE.depth_min_m, SOURCE.depth_max_m, rows).astype(np.float32),
    }
    return Events(columns, *resimulate(SOURCE, seed, columns))


def train_ours(
    name: str, options: dict[str, Any], events: Events, budget: float, seed: int, place: Place = CPU
) -> LoadedModel:
    """Train a workload of crpipe by the trainer's own steps."""
    config, stepper = stepper_of(
        {"seed": seed, "train": {"workload": name}, "model": options}, torch.device(place.device), seed
    )
    workload, state = stepper.workload, stepper.state
    schedule = Schedule.of(config.train)
    rng = np.random.default_rng(seed)
    repeats = max(phase.repeat for phase in state.phases)
    muons, started = 0, place.clock()
    while (used := place.clock() - started) < budget:
        batches = [events.take(rng.integers(0, len(events), place.batch)) for _ in range(repeats)]
        group = [(batch, Cursor(0, state.counters.step * repeats + n)) for n, batch in enumerate(batches)]
        stepper.step(group, (seed,), schedule.factor(state.counters.step, used / budget))
        state.counters.step += 1
        muons += sum(int(workload.size(batch).sum()) for batch in batches)
    generate = generator_of(workload, state, seed)
    if place.device != "cpu":
        torch.cuda.synchronize()
    return LoadedModel(generate, state.counters.step, muons, place.clock() - started)


def generator_of(workload: Any, state: TrainState, seed: int) -> Generate:
    """Give what generates with the averaged weights, at given multiplicities or with the model's own."""
    state.model.load_state_dict(state.average, strict=False)
    generator = torch.Generator(state.device).manual_seed(seed)

    @torch.no_grad()
    def generate(conditions: Events, multiplicity: NDArray[np.int64] | None) -> Events:
        if multiplicity is None:
            multiplicity = workload.multiplicities(state.model, conditions, generator)
        made: Events = workload.generate(state.model, conditions, multiplicity, generator)
        return made

    return generate


class Earlier:
    """The earlier system, trained by its own step with its launcher's settings.

    Adam at 5e-5, 5 critic steps, penalty 10 on every second one with at most 4096 pairs, no empty events. Its
    launcher's batch of 128,000 events would leave few steps in the budget: it gets crpipe's batch.
    """

    critic_steps = 5

    def __init__(self, clone: Path) -> None:
        sys.path.insert(0, str(clone / "training"))
        import model  # type: ignore[import-not-found]  # noqa: PLC0415 - found by the path just added
        import normalizer  # type: ignore[import-not-found]  # noqa: PLC0415 - found by the path just added

        self.system, self.scale = model, normalizer.DataNormalizer()
        self.generator, self.critic = model.ScalableGenerator(), model.ScalableCritic()
        self.optimizers = [
            torch.optim.Adam(net.parameters(), 5e-5, betas=(0.0, 0.9))
            for net in (self.generator, self.critic)
        ]

    def train(self, events: Events, budget: float, seed: int) -> LoadedModel:
        """Train for ``budget`` seconds."""
        rng = np.random.default_rng(seed)
        filled = np.flatnonzero(events.multiplicity)
        steps = muons = 0
        started = time.process_time()
        while time.process_time() - started < budget:
            share = len(filled) / len(events)
            batch = events.take(rng.choice(filled, int(BATCH * share)))
            self._step(batch)
            steps += 1
            muons += len(batch.items)
        return LoadedModel(self.generate, steps, muons, time.process_time() - started)

    def _step(self, batch: Events) -> None:
        counts = batch.multiplicity.astype(np.int64)
        self.system.train_step_scalable(
            self.generator,
            self.critic,
            *self.optimizers,
            self.scale.normalize_features(torch.from_numpy(batch.items)),
            torch.from_numpy(np.repeat(np.arange(len(batch)), counts)),
            self._primaries(batch),
            torch.from_numpy(counts),
            lambda_gp=10.0,
            critic_steps=self.critic_steps,
            gp_max_pairs=4096,
            gp_every=2,
            grad_accum_steps=1,
        )

    @torch.no_grad()
    def generate(self, events: Events, multiplicity: NDArray[np.int64] | None) -> Events:
        """Generate for the events' conditions, with its own multiplicities when none are given."""
        primaries = self._primaries(events)
        if multiplicity is None:
            logs = self.generator.multiplicity_net(primaries)[:, 0]
            multiplicity = (10.0**logs - 1.0).clamp(0, 50_000).round().long().numpy()
        pieces = []
        for low in range(0, len(events), 4096):
            part = slice(low, low + 4096)
            made, _ = self.generator.generate_with_counts(
                primaries[part], torch.from_numpy(multiplicity[part])
            )
            pieces.append(self.scale.denormalize_features(made).numpy())
        return Events(events.columns, multiplicity.astype(np.uint32), np.concatenate(pieces))

    def _primaries(self, events: Events) -> torch.Tensor:
        names = ("energy_gev", "zenith_rad", "mass_number", "depth_m")
        columns = [torch.from_numpy(np.asarray(events.columns[name], np.float32)) for name in names]
        normalised: torch.Tensor = self.scale.normalize_primaries(torch.stack(columns, dim=1))
        return normalised


def train_theirs(clone: Path, events: Events, budget: float, seed: int) -> LoadedModel:
    """Train a new instance of the earlier system."""
    torch.manual_seed(seed)
    return Earlier(clone).train(events, budget, seed)


def judge(truth: Events, generate: Generate) -> dict[str, float]:
    """Evaluate: muons with true multiplicities, then everything generated."""
    started = time.process_time()
    given = generate(truth, truth.multiplicity.astype(np.int64))
    speed = len(given.items) / (time.process_time() - started)
    real, muons, full = sample_of(truth), sample_of(given), sample_of(generate(truth, None))
    numbers = metrics.binned_distances(real, muons, metrics.group_weights(real.group))
    numbers["generated_per_s"] = speed
    for name, side in (("auc_event", muons), ("auc_multiplicity", full), ("auc_full", full)):
        verdict = classify.compare(real, side, metrics.CLASSIFIERS[name])
        numbers[name] = float("nan") if verdict is None else verdict.auc()
    return numbers


def systems(options: argparse.Namespace, events: Events) -> dict[str, Callable[[int], LoadedModel]]:
    """Name every system to train, each as a function of the seed."""
    package = "crpipe.workloads.muons"
    chosen: dict[str, Callable[[int], LoadedModel]] = {}
    if options.cr_muons is None:
        print("cr_muons: skipped; name its clone with --cr-muons PATH")
    else:
        chosen["cr_muons, launcher"] = partial(train_theirs, options.cr_muons, events, options.budget)
    for name in options.workloads:
        place = Place(options.device, options.batch)
        chosen[name] = partial(train_ours, f"{package}:{name}", {}, events, options.budget, place=place)
    return chosen


def show(name: str, trained: LoadedModel | None, numbers: dict[str, float]) -> None:
    """Print one row of the table."""
    cells = [f"{name:26}"]
    cells += [f"{trained.steps:7d} {trained.muons / trained.seconds:9.0f}" if trained else " " * 17]
    cells += [f"{numbers['generated_per_s']:11.0f}" if trained else " " * 11]
    cells += [
        f"{numbers.get('w1_log_energy', np.nan):8.4f} ±{numbers.get('w1_log_energy_error', np.nan):.4f}"
    ]
    cells += [f"{numbers.get('w1_radius_m', np.nan):8.2f}"]
    cells += [f"{numbers[key]:7.3f}" for key in ("auc_event", "auc_multiplicity", "auc_full")]
    print(" ".join(cells), flush=True)


def tell_goals(rows: dict[str, list[tuple[LoadedModel, dict[str, float]]]]) -> None:
    """Print whether the goals of the default workload are met, for the mean over seeds."""
    ours = rows.get("MuonGan")
    if not ours:
        return
    for key, (limit, label) in GOALS.items():
        value = float(np.mean([numbers[key] for _, numbers in ours]))
        print(f"{label} {value:.4f}, goal at most {limit}: {'met' if value <= limit else 'missed'}")
    if theirs := rows.get("cr_muons, launcher"):
        speeds = [
            [(made.muons / made.seconds, numbers["generated_per_s"]) for made, numbers in side]
            for side in (ours, theirs)
        ]
        ratios = np.mean(speeds[0], axis=0) / np.mean(speeds[1], axis=0)
        for label, ratio in zip(("training", "generation"), ratios, strict=True):
            print(f"{label} {ratio:.2f} x, goal at least 2 x: {'met' if ratio >= 2 else 'missed'}")


def main() -> None:
    """Train and evaluate every system and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=600.0, help="CPU seconds of training for each system")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of crpipe; with cuda the budget is of wall time")
    parser.add_argument("--batch", type=int, default=BATCH, help="events in a batch of crpipe")
    parser.add_argument("--rows", type=int, default=TRAINING, help="simulated for training")
    parser.add_argument("--cr-muons", type=Path, help="clone of the earlier system")
    parser.add_argument("--workloads", nargs="*", default=["MuonGan", "MuonFlow"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    events = simulate(options.rows, seed=1)
    truth = simulate(VALIDATION, seed=2).take(np.arange(EVALUATED))
    print(f"{len(events)} training rows, {np.mean(events.multiplicity == 0):.0%} without muons, ", end="")
    print(f"{int(offsets(events.multiplicity)[-1])} muons; {options.budget:.0f} s on {options.device}")
    print(
        f"{'system':26} {'steps':>7} {'trained/s':>9} {'generated/s':>11} {'W1(log E)':>16} {'W1(r) m':>8}",
        end="",
    )
    print(f" {'event':>7} {'N':>7} {'full':>7}  (AUC)", flush=True)
    rows: dict[str, list[tuple[LoadedModel, dict[str, float]]]] = {}
    for name, train in systems(options, events).items():
        for seed in range(options.seeds):
            trained = train(seed)
            numbers = judge(truth, trained.generate)
            rows.setdefault(name, []).append((trained, numbers))
            show(f"{name}, seed {seed}", trained, numbers)
    again = Events(truth.columns, *resimulate(SOURCE, 3, truth.columns))
    show("floor: simulated again", None, judge(truth, lambda _events, _multiplicity: again))
    tell_goals(rows)


if __name__ == "__main__":
    main()
