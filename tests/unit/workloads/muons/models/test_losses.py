"""Losses of both generators: which events count, penalties, bfloat16, bundles in pieces, and padding."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch

from crpipe.config.loading import validate
from crpipe.events.batch import Cursor
from crpipe.loading.microbatch import rounded
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.workloads.muons import MuonGan, MuonGanOptions, MuonVae, MuonVaeOptions
from crpipe.workloads.muons.models import gan, layers

SETTINGS = [
    {},
    {"penalty_sides": "two", "features": "cartesian"},
    {"penalty": "gradient", "gp_sample_fraction": 0.5},
    {"penalty": "none", "optimizer": "sgd", "momentum": 0.5},
]
WORKLOADS = [
    MuonGan(MuonGanOptions(hidden=16)),
    MuonGan(MuonGanOptions(hidden=16, penalty="gradient", penalty_sides="two")),
    MuonGan(MuonGanOptions(hidden=16, penalty="gradient", gp_max_pairs=400, features="cartesian")),
    MuonVae(MuonVaeOptions(hidden=16)),
]


def build(**options):
    torch.manual_seed(0)
    workload = MuonGan(MuonGanOptions(hidden=8, max_muons=6, **options))
    return workload, workload.model()


def losses(workload, model, batch, seed=1):
    for phase in workload.phases():
        loss, metrics = phase.loss(model, batch, torch.Generator().manual_seed(seed))
        yield phase, loss, metrics


def gradient(phase, model, loss):
    params = list(phase.params(model))
    grads = torch.autograd.grad(loss, params, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for p, g in zip(params, grads, strict=True)
        ]
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_events_without_muons_move_the_multiplicity_alone(bundles, workload):
    model, batch = workload.model(), workload.collate(bundles([0, 0, 0]), np.arange(3), (1,))
    for phase, loss, _ in losses(workload, model, batch):
        assert torch.isfinite(loss)
        assert (gradient(phase, model, loss).abs().sum() > 0) == (phase.name == "multiplicity")


def test_a_rarer_penalty_keeps_its_weight(bundles):
    events = bundles(np.full(40, 3))

    def penalties(every, seeds):
        workload, model = build(penalty="gradient", penalty_sides="two", gp_every=every)
        batch = workload.collate(events, np.arange(40), (1,))
        critic = workload.phases()[1]
        made = [critic.loss(model, batch, torch.Generator().manual_seed(seed)) for seed in range(seeds)]
        return np.array([float(metrics["penalty"]) for _, metrics in made])

    rare = penalties(3, 240)
    assert np.mean(rare > 0) == pytest.approx(1 / 3, abs=0.1)
    assert rare[rare > 0].mean() == pytest.approx(3 * penalties(1, 20).mean(), rel=0.02)


@pytest.mark.parametrize("options", [{"gp_sample_fraction": 0.25}, {"gp_max_pairs": 10}])
def test_a_penalty_on_a_sample_keeps_its_weight(bundles, options):
    events = bundles(np.full(40, 3))

    def mean_penalty(**chosen):
        workload, model = build(penalty="gradient", penalty_sides="two", **chosen)
        critic = workload.phases()[1]
        batches = [workload.collate(events, np.arange(40), (number,)) for number in range(40)]
        losses = [critic.loss(model, batch, torch.Generator().manual_seed(5)) for batch in batches]
        return np.mean([float(metrics["penalty"]) for _, metrics in losses])

    assert mean_penalty(**options) == pytest.approx(mean_penalty(), rel=0.1)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", SETTINGS)
def test_losses_of_16_bits_are_close_to_float32_ones(bundles, options, kind):
    workload, model = build(**options)
    batch = workload.collate(bundles(np.arange(60)), np.arange(60), (1,))
    exact = [loss for _, loss, _ in losses(workload, model, batch)]
    with torch.autocast("cpu", kind):
        rough = list(losses(workload, model, batch))
    for (phase, loss, _), known in zip(rough, exact, strict=True):
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, known, atol=0.01, rtol=0 if phase.name == "multiplicity" else 0.02)
        assert torch.isfinite(gradient(phase, model, loss)).all()
    assert rough[0][1] == exact[0]


def _stepper():
    """Prepare a training in bfloat16, with micro-batches of several events."""
    train = {"workload": "crpipe.workloads.muons:MuonGan", "precision": "bfloat16"}
    config = validate({"train": train, "load": {"max_items": 90}})
    workload, model = build(penalty="gradient")
    cpu = torch.device("cpu")
    state = TrainState(model, workload.phases(), 1, cpu)
    return Stepper(config.train, config.load, workload, state, World(0, 1, cpu), Meter(cpu))


def _train(stepper, events, steps):
    for _ in range(steps):
        groups = [(events, Cursor(stepper.state.counters.step, number)) for number in range(5)]
        assert stepper.step(groups, (1,), 1.0) == 0
        stepper.state.counters.step += 1


@pytest.mark.parametrize("least", [layers.LEAST, 1])
def test_a_training_in_bfloat16_continues_bit_for_bit(bundles, monkeypatch, least):
    monkeypatch.setattr(layers, "LEAST", least)  # micro-batches as they are, or padded
    events = bundles(np.arange(60) % 9)
    whole, first, rest = (_stepper() for _ in range(3))
    _train(whole, events, 3)
    _train(first, events, 1)
    rest.state.restore(copy.deepcopy(first.state.state({})))
    _train(rest, events, 2)
    wanted = dict(whole.state.model.named_parameters())
    for name, value in rest.state.model.named_parameters():
        assert value.dtype == torch.float32
        assert torch.equal(value, wanted[name])


def test_size_is_what_collate_keeps(bundles):
    workload, _ = build()
    events = bundles([0, 3, 6, 7, 500])
    assert workload.size(events).tolist() == [0, 3, 6, 6, 6]
    assert len(workload.collate(events, np.arange(5), (1,))["muons"]) == 21


EVENT = torch.tensor([0, 0, 0, 1, 2, 2])
KEPT = torch.tensor([3.0, 1.0, 2.0])


class Linear(torch.nn.Module):
    """Scores an event by the mean of w·x over its muons: its slope per root-mean-square distance is |w|."""

    def __init__(self, weight: list[float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def forward(self, muons, context, event, kept):
        return gan.mean_of((muons @ self.weight)[:, None], event, kept)[:, 0]


def test_order_is_by_energy_inside_each_event():
    muons = torch.randn(6, 3)
    ordered = gan.by_energy(muons, EVENT)
    for number in range(3):
        mine = muons[number == EVENT]
        torch.testing.assert_close(ordered[number == EVENT], mine[mine[:, 0].argsort()])


def test_wild_features_stay_in_their_event():
    muons = torch.tensor([[1e30], [0.0], [-1e30], [5.0], [1e30], [-1e30]])
    ordered = gan.by_energy(muons, EVENT)
    assert ordered[3] == 5.0
    assert set(ordered[4:, 0].tolist()) == {muons[4].item(), muons[5].item()}


def test_slope_of_a_linear_critic_is_its_norm():
    critic = Linear([3.0, 4.0])
    muons = torch.randn(6, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(muons, None, EVENT, KEPT).sum(), muons)
    slopes = gan.gradient_slopes(gradient, EVENT, KEPT)
    torch.testing.assert_close(slopes, torch.full((3,), 5.0))


def test_pair_slope_along_the_steepest_way_is_the_gradients():
    critic, real = Linear([3.0, 4.0]), torch.randn(6, 2)
    fake = real - torch.tensor([0.6, 0.8]) * 2.0
    gap = critic(real, None, EVENT, KEPT) - critic(fake, None, EVENT, KEPT)
    slopes = gan.pair_slopes(gap, real, fake, EVENT, KEPT)
    torch.testing.assert_close(slopes, torch.full((3,), 5.0))


@pytest.mark.parametrize(("sides", "expected"), [("one", [0.0, 0.0, 4.0]), ("two", [0.25, 0.0, 4.0])])
def test_sides(sides, expected):
    assert gan.excess(torch.tensor([0.5, 1.0, 3.0]), sides).tolist() == expected


def test_equal_bundles_have_finite_gradients():
    critic, same = Linear([3.0, 4.0]), torch.randn(6, 2)
    gap = critic(same, None, EVENT, KEPT) - critic(same.clone(), None, EVENT, KEPT)
    gan.pair_slopes(gap, same, same, EVENT, KEPT).sum().backward()
    assert torch.isfinite(critic.weight.grad).all()


@pytest.mark.parametrize("options", [{}, {"penalty": "gradient", "features": "cartesian"}])
def test_losses_and_gradients_in_pieces_equal_those_in_one_go(bundles, monkeypatch, options):
    workload = MuonGan(MuonGanOptions(max_muons=0, hidden=8, **options))
    torch.manual_seed(1)
    model, batch = workload.model(), workload.collate(bundles([1000]), np.arange(1), (1,))
    batch["muons"][500:600] = batch["muons"][:100]  # muons that tie, in pieces of 300, in other ones
    whole = [(loss, gradient(phase, model, loss)) for phase, loss, _ in losses(workload, model, batch)]
    monkeypatch.setattr(gan, "PIECE", 300)
    calls, scores = [], gan.scores
    monkeypatch.setattr(gan, "scores", lambda *args: calls.append(1) or scores(*args))
    for known, (phase, loss, _) in zip(whole, losses(workload, model, batch), strict=True):
        torch.testing.assert_close((loss, gradient(phase, model, loss)), known, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2  # critic and generator


def test_only_an_event_that_no_micro_batch_can_split_is_taken_in_pieces():
    assert gan.needed(gan.PIECE + 1, 1)
    assert not gan.needed(gan.PIECE, 1)
    assert not gan.needed(10 * gan.PIECE, 2)


GIANT = """
import sys
sys.path[:0] = sys.argv[2:]
import numpy as np, torch
from conftest import make_events
from crpipe.workloads.muons import MuonGan, MuonGanOptions
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
torch.set_num_threads(1)
workload = MuonGan(MuonGanOptions(max_muons=0))
model, generator = workload.model(), torch.Generator()
def train(muons):
    batch = workload.collate(make_events([muons]), np.arange(1), (1,))
    for phase in workload.phases():
        loss, _ = phase.loss(model, batch, generator)
        loss.backward()
train(40_000)
before = peak()
train(int(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.slow
def test_an_event_of_many_pieces_fits_into_a_bounded_memory(request):
    script = [sys.executable, "-c", GIANT, "300000", str(request.path.parents[1]), *sys.path]
    run = subprocess.run(script, capture_output=True, text=True, check=True)
    # KiB on top of the event of 40,000; in one go it is 4.6 kB for each muon, 1,400,000 together.
    assert int(run.stdout) < 900_000


def _batch(workload, events, weight=False):
    index = np.random.default_rng(1).permutation(len(events))
    batch = workload.collate(events, index, (1,))
    if weight:
        batch["weight"] = torch.linspace(0.5, 2.0, len(index))
    return batch


def _gradients(workload, batch, monkeypatch):
    """Every phase's loss and gradients, from the same weights; equal rows of noise for equal places."""
    noise = torch.Generator().manual_seed(3)
    normal, uniform = torch.randn(4000, 8, generator=noise), torch.rand(4000, generator=noise)
    with monkeypatch.context() as patch:
        patch.setattr(gan, "_normal", lambda rows, columns, _: normal[:rows, :columns])
        patch.setattr(torch, "randn", lambda shape, **_: normal[: shape[0], : shape[1]])
        patch.setattr(torch, "rand", lambda *shape, **_: uniform[: shape[0]].reshape(shape))
        torch.manual_seed(1)
        model = workload.model()
        found = []
        for phase in workload.phases():
            loss, metrics = phase.loss(model, batch, torch.Generator())
            gradients = torch.autograd.grad(loss, list(phase.params(model)))
            found += [loss.detach(), *metrics.values(), *gradients]
    return found


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_padded_batch_gives_the_losses_and_gradients_of_the_batch(bundles, workload, weight, monkeypatch):
    events = bundles(np.arange(600) % 7)
    padded = _batch(workload, events, weight)
    with monkeypatch.context() as patch:
        patch.setattr(layers, "LEAST", 10**9)
        plain = _batch(workload, events, weight)
    assert len(plain["counts"]) == 600 < len(padded["counts"])
    for name in ("counts", "muons", "kept"):
        assert rounded(len(padded[name])) == len(padded[name]) > len(plain[name])
    close = {"rtol": 1e-4, "atol": 1e-6}
    pairs = zip(*(_gradients(workload, batch, monkeypatch) for batch in (padded, plain)), strict=True)
    for mine, known in pairs:
        torch.testing.assert_close(mine, known, **close)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_padding_holds_does_not_matter(bundles, workload, monkeypatch):
    batch = _batch(workload, bundles(np.arange(600) % 7), weight=True)
    other = {name: tensor.clone() for name, tensor in batch.items()}
    filled = int(batch["counts"][: len(batch["kept"])].sum())
    false = batch["counts"] == 0
    other["conditions"][false] = 3.0
    other["multiplicity"][false] = 1000
    other["order"][false] = 5
    other["muons"][batch["event"] >= filled] = -2.0
    for mine, known in zip(
        _gradients(workload, other, monkeypatch), _gradients(workload, batch, monkeypatch), strict=True
    ):
        assert torch.equal(mine, known)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_batches_of_a_kind_have_few_shapes(bundles, workload):
    rng = np.random.default_rng(2)
    batches = [_batch(workload, bundles(rng.poisson(4.0, 2000))) for _ in range(20)]
    for name in batches[0]:
        assert len({batch[name].shape for batch in batches}) <= 8
