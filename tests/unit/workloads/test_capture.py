"""What a CUDA graph of a phase needs, for every phase of every workload in both precisions, on a CPU.

A graph repeats the operations of one loss and its gradients on other values in the same places.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import directions
import toy
import xenon_models
import xenon_toy
from crpipe.config.sections import LoadSection, TrainSection
from crpipe.events.batch import Cursor
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.workloads.muons import MuonGan, MuonGanOptions, MuonVae, MuonVaeOptions
from one_graph import NeverWaits, assert_one_graph

CPU = torch.device("cpu")
GRADIENT = {"penalty": "gradient", "penalty_sides": "two"}
MUONS = {
    "MuonGan": lambda: MuonGan(MuonGanOptions(hidden=16)),
    "MuonGan, no penalty": lambda: MuonGan(MuonGanOptions(hidden=16, penalty="none", optimizer="sgd")),
    "MuonGan, gradient": lambda: MuonGan(MuonGanOptions(hidden=16, gp_every=1, **GRADIENT)),
    "MuonVae": lambda: MuonVae(MuonVaeOptions(hidden=16)),
}
DIRECTIONS = {name: partial(directions.build, name, rotate=True) for name in directions.WORKLOADS}
XENON = {
    "Regressor": partial(xenon_models.workload, "Regressor", tasks=xenon_models.ALL_TASKS),
    "MaskedAutoencoder": partial(xenon_models.workload, "MaskedAutoencoder"),
    "Inpainter": partial(xenon_models.workload, "Inpainter"),
}
PHASES = {"MuonGan": 3, "MuonGan, no penalty": 3, "MuonGan, gradient": 3, "MuonVae": 2}
WORKLOADS = [*MUONS, *DIRECTIONS, *XENON]
# A penalty is the critic's alone.
CASES = [
    (name, number) for name in WORKLOADS for number in ([1] if "," in name else range(PHASES.get(name, 1)))
]
# Recorded or compiled, models of many layers take seconds.
RECORDED = [
    case if case[0] in {*MUONS, "DeepSet"} else pytest.param(case, marks=pytest.mark.slow) for case in CASES
]
PRECISIONS = ["float32", "bfloat16"]


def workload_and_events(name):
    """Build a workload with some events, enough to be padded."""
    if name in MUONS:
        return MUONS[name](), toy.make_events(700, 1)
    if name in DIRECTIONS:
        return DIRECTIONS[name]()[0], directions.make_events([9, 1, 40, 0, 17, 300])
    return XENON[name](), xenon_toy.make_gammas(3)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """The layers and sums that a CPU alone uses are left out."""
    monkeypatch.setattr("crpipe.workloads.muons.models.layers.is_fused", lambda _: False)


def phase_of(name, number):
    """A phase with model, weights and a batch."""
    workload, events = workload_and_events(name)
    torch.manual_seed(1)
    model = workload.model()
    phases = workload.phases()
    assert len(phases) == PHASES.get(name, 1)
    weights = list(phases[number].params(model))
    for weight in model.parameters():
        weight.requires_grad_(any(weight is own for own in weights))
        with torch.no_grad():  # at first many layers do nothing
            weight.add_(0.05 * torch.randn(weight.shape))
    return phases[number], model, weights, workload.collate(events, np.arange(len(events)), (1,))


def loss_and_gradients(phase, model, weights, generator, batch):
    loss, metrics = phase.loss(model, batch, generator)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [loss.detach(), *metrics.values(), *(each for each in found if each is not None)]


@pytest.mark.parametrize("case", CASES)
def test_a_phase_waits_for_no_device_and_draws_from_the_trainers_generator_alone(case):
    phase, model, weights, batch = phase_of(*case)
    before = torch.get_rng_state()
    found = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(1)
        with NeverWaits():
            found.append(loss_and_gradients(phase, model, weights, generator, batch))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert all(torch.isfinite(value).all() for value in found[0])


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        torch.unique,
        lambda x: x.repeat_interleave(x.abs().long()),
    ],
)
def test_a_wait_fails(wait):
    with pytest.raises(AssertionError), NeverWaits():
        wait(torch.ones(3))


@pytest.fixture
def drawn_before(monkeypatch):
    """Random numbers that a graph finds in the same place: what a generator gives once."""
    made = {}

    def draw(original, *shape, generator=None, **options):
        if generator is None:  # weights
            return original(*shape, **options)
        key = (original.__name__, *shape)
        if key not in made:
            made[key] = original(*shape, generator=generator, **options)
        return made[key]

    for original in (torch.randn, torch.rand):
        monkeypatch.setattr(torch, original.__name__, partial(draw, original))


def other_values(batch):
    """Other numbers of the same kind in the same shapes: the floats, whatever they are, of other events."""
    return {
        name: 1.25 * tensor if tensor.is_floating_point() and name not in {"counts", "kept"} else tensor
        for name, tensor in batch.items()
    }


@pytest.mark.usefixtures("drawn_before")
@pytest.mark.parametrize("case", RECORDED)
def test_recorded_operations_repeat_on_other_values(case):
    """No number of the batch that was recorded may be in them, and no choice that depended on one.

    In float32 alone: the recorder takes layers apart, and bfloat16 then rounds elsewhere.
    """
    phase, model, weights, batch = phase_of(*case)
    once = partial(loss_and_gradients, phase, model, weights, torch.Generator().manual_seed(1))
    changed = other_values(batch)
    first, wanted = once(batch), once(changed)  # draws the random numbers, which are then in place
    recorded = make_fx(once)(batch)
    pairs = zip(first, wanted, strict=True)
    assert not all(torch.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in pairs)
    for mine, known in zip(recorded(changed), wanted, strict=True):
        torch.testing.assert_close(mine, known, rtol=1e-4, atol=1e-5)


# torch's compiler itself makes an instance of each autograd.Function that it meets.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("drawn_before")
@pytest.mark.parametrize("case", RECORDED)
def test_a_phase_in_bfloat16_is_one_graph(case):
    phase, model, _, batch = phase_of(*case)
    generator = torch.Generator().manual_seed(1)
    graphs = []

    def loss(batch):
        with torch.autocast("cpu", torch.bfloat16):
            return phase.loss(model, batch, generator)[0]

    known = loss(batch)
    torch._dynamo.reset()
    whole = torch.compile(
        loss, fullgraph=True, dynamic=False, backend=lambda graph, _: graphs.append(1) or graph
    )
    torch.testing.assert_close(whole(batch), known, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()
    assert len(graphs) == 1


@pytest.mark.slow
# torch's compiler itself makes an instance of each autograd.Function that it meets.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("drawn_before")
@pytest.mark.parametrize(
    "case",
    [
        ("MuonGan", 1),
        ("MuonGan, gradient", 1),
        ("MuonVae", 1),
        ("DeepSet", 0),
        *((name, 0) for name in XENON),
    ],
)
def test_a_compiled_phase_has_the_gradients_of_an_eager_one(case):
    phase, model, weights, batch = phase_of(*case)
    generator = torch.Generator().manual_seed(1)

    def loss():
        return phase.loss(model, batch, generator)

    loss()  # draws the random numbers, which are then in place
    assert_one_graph(loss, torch.nn.ParameterList(weights))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_step_of_the_trainer_waits_for_no_device(name, precision):
    """Losses, gradients, clipping, optimizers, averaged weights and metrics; collating is on the host."""
    workload, events = workload_and_events(name)
    state = TrainState(workload.model(), workload.phases(), 1, CPU)
    train = TrainSection(precision=precision, gradient_clip_norm=1.0, fresh_batches=False)
    stepper = Stepper(train, LoadSection(), workload, state, World(0, 1, CPU), Meter(CPU))
    group = (events, Cursor(0, 1))
    ready = {group[1]: stepper.collate_ahead(group, (1,))[2]}
    before = [weight.clone() for weight in state.model.parameters()]
    for _ in range(2):
        with NeverWaits():
            bad = stepper.step([group], (1,), 1.0, ready=ready)
        assert not bad
        state.counters.step += 1
    assert not all(torch.equal(*pair) for pair in zip(before, state.model.parameters(), strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MUONS)
def test_a_whole_step_on_a_gpu_never_waits_for_it(name):
    device = torch.device("cuda", 0)
    workload, events = workload_and_events(name)
    state = TrainState(workload.model(), workload.phases(), 1, device)
    stepper = Stepper(TrainSection(), LoadSection(), workload, state, World(0, 1, device), Meter(device))
    group = [(events, Cursor(0, number)) for number in range(3)]
    stepper.step(group, (1,), 1.0)  # what is set up once may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stepper.step(group, (1,), 1.0)
        with pytest.raises(RuntimeError):
            float(torch.zeros((), device=device))
    finally:
        torch.cuda.set_sync_debug_mode("default")
