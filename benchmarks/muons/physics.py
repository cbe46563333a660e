"""How good bundles are after a given time of training, beside the earlier system and the floor.

All systems get the same events, the same CPU seconds on one thread and the same evaluation; the floor is a
second simulation of the validation events.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.runner import once
from benchmarks.steppers import stepper_of
from benchmarks.table import show
from crpipe.events.batch import Cursor, Events
from crpipe.inference.measured import measure
from crpipe.train.schedule import Schedule
from crpipe.workloads.muons.layout import PRIMARY_IDS
from crpipe.workloads.muons.scoring import classify, metrics
from crpipe.workloads.muons.scoring.score import pair_of
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import sample_primaries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.runner import Run

# An almost flat spectrum: each decade of primary energy counts the same, and 6 in 10 rows have no muon.
SOURCE = AirShowersOptions(energy_min_gev=1e3, energy_max_gev=1e8, spectral_index=1.1)
TRAINING, VALIDATION, EVALUATED = 300_000, 80_000, 40_000
BATCH = 640
WIDTH = 64  # of crpipe's networks by default
# Given true multiplicities, or none: generates for the conditions of the events.
Generate = Callable[[Events, "NDArray[np.int64] | None"], Events]


@dataclass(frozen=True)
class Trained:
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
    return AirShowers(SOURCE).again(columns, seed)


def train_ours(
    name: str, events: Events, budget: float, seed: int, device: str, batch_events: int, hidden: int
) -> Trained:
    """Train a workload of crpipe by the trainer's own steps; on a GPU the time is that of the wall."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    tree = {"seed": seed, "train": {"workload": name}, "model": {"hidden": hidden}}
    config, stepper = stepper_of(tree, torch.device(device), seed)
    workload: Any = stepper.workload
    state = stepper.state
    schedule = Schedule.of(config.train)
    rng = np.random.default_rng(seed)
    repeats = max(phase.repeat for phase in state.phases)
    muons, started = 0, clock()
    while (used := clock() - started) < budget:
        batches = [events.take(rng.integers(0, len(events), batch_events)) for _ in range(repeats)]
        group = [(batch, Cursor(0, state.counters.step * repeats + n)) for n, batch in enumerate(batches)]
        stepper.step(group, (seed,), schedule.factor(state.counters.step, used / budget))
        state.counters.step += 1
        muons += sum(int(workload.size(batch).sum()) for batch in batches)
    state.model.load_state_dict(state.average, strict=False)
    generator = torch.Generator(state.device).manual_seed(seed)

    @torch.no_grad()
    def generate(conditions: Events, multiplicity: NDArray[np.int64] | None) -> Events:
        if multiplicity is None:
            multiplicity = workload.multiplicities(state.model, conditions, generator)
        made: Events = workload.generate(state.model, conditions, multiplicity, generator)
        return made

    if device != "cpu":
        torch.cuda.synchronize()
    return Trained(generate, state.counters.step, muons, clock() - started)


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

    def train(self, events: Events, budget: float, seed: int) -> Trained:
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
        return Trained(self.generate, steps, muons, time.process_time() - started)

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


def judge(truth: Events, generate: Generate) -> dict[str, float]:
    """Evaluate: muons with true multiplicities, then everything generated."""
    started = time.process_time()
    given = generate(truth, truth.multiplicity.astype(np.int64))
    speed = len(given.items) / (time.process_time() - started)
    real, muons = pair_of(truth, given)
    _, full = pair_of(truth, generate(truth, None))
    scores = metrics.compare_given(real, muons, classify.judges(real, muons, classify.GIVEN))
    scores |= metrics.compare(real, full, classify.judges(real, full, classify.OWN))
    return {**measure(scores, real.group, "judge").numbers, "generated_per_s": speed}


PEER, FLOOR = "cr_muons", "floor: simulated again"


def side(
    system: str,
    *,
    seed: int = 0,
    budget: float = 0.0,
    rows: int = TRAINING,
    validation: int = VALIDATION,
    device: str = "cpu",
    batch: int = BATCH,
    hidden: int = WIDTH,
    clone: str = "",
) -> Callable[[], dict[str, float]]:
    """Prepare a training and its evaluation, or that of the floor; its work returns all numbers."""
    torch.set_num_threads(1)
    events = simulate(rows if system != FLOOR else 1, seed=1)
    truth = simulate(validation, seed=2).take(np.arange(validation // 2))

    def work() -> dict[str, float]:
        if system == FLOOR:
            again = AirShowers(SOURCE).again(truth.columns, 3)
            found = judge(truth, lambda _events, _multiplicity: again)
            return {key: value for key, value in found.items() if key != "generated_per_s"}
        if system == PEER:
            torch.manual_seed(seed)
            trained = Earlier(Path(clone)).train(events, budget, seed)
        else:
            name = f"crpipe.workloads.muons:{system}"
            trained = train_ours(name, events, budget, seed, device, batch, hidden)
        speeds = {"steps": trained.steps, "trained_per_s": trained.muons / trained.seconds}
        return speeds | judge(truth, trained.generate)

    return work


COLUMNS = {
    "steps": "steps",
    "trained_per_s": "trained muons/s",
    "generated_per_s": "generated muons/s",
    "w1_log_energy": "W1(log E)",
    "w1_log_energy_error": "its error",
    "w1_log_radius": "W1(log r)",
    "auc_event": "AUC event",
    "auc_multiplicity": "AUC multiplicity",
    "auc_full": "AUC full",
}


def physics(
    run: Run,
    *,
    budget: float = 600.0,
    seeds: int = 1,
    device: str = "cpu",
    batch: int = BATCH,
    rows: int = TRAINING,
    validation: int = VALIDATION,
    workloads: tuple[str, ...] = ("MuonGan", "MuonVae"),
    hidden: tuple[int, ...] = (WIDTH,),
) -> None:
    """Train and evaluate every system.

    budget: CPU seconds of training for each; with --device cuda of wall time. batch: events in a batch of
    crpipe. rows, validation: simulated for training and, of which half are judged, for validation. hidden:
    widths of crpipe's networks.
    """
    clone = run.peer(PEER)
    given: dict[str, Any] = {"budget": budget, "rows": rows, "validation": validation}
    systems: dict[str, dict[str, Any]] = {PEER: {"system": PEER, "clone": clone}} if clone else {}
    for width in hidden:
        more = {"device": device, "batch": batch, "hidden": width}
        systems |= {f"{name}, width {width}": {"system": name, **more} for name in workloads}
    found: dict[str, list[dict[str, float]]] = {}
    for name, more in systems.items():
        for seed in range(seeds):
            answer = once(f"{__name__}:side", {"seed": seed, **given, **more}).answer
            found.setdefault(name, []).append(answer)
            print(f"{name}, seed {seed}: {answer}", flush=True)
    found[FLOOR] = [once(f"{__name__}:side", {"system": FLOOR, **given}).answer]
    cells = [
        [f"{name}, seed {seed}", *(row.get(key, "") for key in COLUMNS)]
        for name, each in found.items()
        for seed, row in enumerate(each)
    ]
    show(f"{rows:,} rows, {budget:g} s on {device}", ["", *COLUMNS.values()], cells)
