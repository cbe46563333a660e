"""What weights of events mean: copies of events, however a batch is cut and shared out."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from crpipe.core.errors import PluginError
from crpipe.events.batch import Cursor, Events
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.models.gan import MuonGan
from crpipe.workloads.muons.models.vae import MuonVae
from crpipe.workloads.muons.options import MuonGanOptions, MuonVaeOptions
from toy import make_events, toy_config

CPU = torch.device("cpu")
EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
weights = st.lists(st.sampled_from([0.0, 0.25, 1.0, 2.0, 7.5, 1e-6, 1e5]), min_size=1, max_size=12)


class Line:
    """Fits a straight line: the energy from the depth."""

    weighted = True

    def size(self, events):
        return np.full(len(events), 10)

    def collate(self, events, index, seed):
        columns = {"x": events.columns["depth_m"], "y": events.columns["energy_gev"]}
        return {name: torch.from_numpy(values[index].astype(np.float32)) for name, values in columns.items()}

    def model(self):
        return nn.Linear(1, 1)

    def phases(self):
        return [Phase("fit", lambda model: model.parameters(), self.loss, OptimizerSpec("sgd", 0.1))]

    def loss(self, model, batch, generator):
        wrong = (model(batch["x"][:, None])[:, 0] - batch["y"]) ** 2
        if "weight" not in batch:
            return wrong.mean(), {"error": wrong.mean().detach()}
        mean = (wrong * batch["weight"]).sum() / batch["weight"].sum()
        return mean, {"error": mean.detach()}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return toy_config(tmp_path_factory.mktemp("campaign"))


def trained(config, events, weight="", budget=1 << 20, steps=2, workload=None):
    """Take steps on the same events; give the parameters and the logged loss."""
    torch.manual_seed(3)
    workload = workload or Line()
    state = TrainState(workload.model(), workload.phases(), 1, CPU)
    world, meter = World(0, 1, CPU), Meter(CPU)
    load = config.load.model_copy(update={"max_items": budget})
    stepper = Stepper(config.train, load, workload, state, world, meter, weight)
    skipped = [float(stepper.step([(events, Cursor(0, step))], (1,), 1.0)) for step in range(steps)]
    assert not any(skipped)
    values = torch.cat([value.detach().double().flatten() for value in state.model.parameters()])
    return values.numpy(), meter.means(world)


def weighted(events, values):
    return Events({**events.columns, "flux": np.array(values, np.float32)}, events.multiplicity, events.items)


def close(one, two):
    np.testing.assert_allclose(one[0], two[0], rtol=2e-5, atol=1e-6)
    assert one[1].keys() == two[1].keys()
    for name in ("fit/loss", "fit/error") if "fit/loss" in one[1] else one[1]:
        if name in one[1]:
            assert one[1][name] == pytest.approx(two[1][name], rel=1e-4)


@EXAMPLES
@given(value=st.sampled_from([1e-6, 0.5, 1.0, 3.0, 1e6]), count=st.integers(1, 12))
def test_equal_weights_are_no_weights(config, value, count):
    events = make_events(count, 1)
    close(trained(config, weighted(events, [value] * count), "flux"), trained(config, events))


@EXAMPLES
@given(copies=st.lists(st.integers(0, 3), min_size=2, max_size=10).filter(any))
def test_an_event_of_weight_two_is_two_events(config, copies):
    events = make_events(len(copies), 2)
    repeated = events.take(np.repeat(np.arange(len(copies)), copies))
    close(trained(config, weighted(events, copies), "flux"), trained(config, repeated))


@EXAMPLES
@given(values=weights.filter(any), budget=st.sampled_from([1, 10, 25, 40]))
def test_results_do_not_depend_on_micro_batches(config, values, budget):
    events = weighted(make_events(len(values), 3), values)
    close(trained(config, events, "flux", budget), trained(config, events, "flux"))


class Ranks:
    """Two ranks as threads: ``all_reduce`` adds up what both bring."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=60)
        self.brought = {}

    def all_reduce(self, tensor):
        self.brought[threading.current_thread().name] = tensor.clone()
        self.barrier.wait()
        total = sum(self.brought[name] for name in sorted(self.brought))
        self.barrier.wait()
        tensor.copy_(total)


@settings(EXAMPLES, max_examples=8)
@given(values=st.lists(st.sampled_from([0.0, 0.5, 1.0, 40.0, 1e-4]), min_size=4, max_size=12).filter(any))
def test_two_ranks_do_what_one_does(config, values):
    whole = weighted(make_events(len(values), 7), values)
    half = len(values) // 2
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(torch.distributed, "all_reduce", Ranks().all_reduce)
        states = [state_of() for _ in range(2)]
        parts = [whole.part(0, half), whole.part(half, len(whole))]
        shares = [pool.submit(one_rank, config, *each) for each in zip(range(2), states, parts, strict=True)]
        found = [share.result() for share in shares]
    expected = trained(config, whole, "flux", steps=1)[0]
    for one in found:
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=1e-6)


def state_of():
    torch.manual_seed(3)
    workload = Line()
    return TrainState(workload.model(), workload.phases(), 1, CPU)


def one_rank(config, rank, state, events):
    world = World(rank, 2, CPU)
    stepper = Stepper(config.train, config.load, Line(), state, world, Meter(CPU), "flux")
    assert not stepper.step([(events, Cursor(0, 0))], (1,), 1.0)
    return torch.cat([value.detach().double().flatten() for value in state.model.parameters()]).numpy()


@pytest.mark.parametrize("budget", [10, 1 << 20])
def test_events_without_any_weight_change_nothing(config, budget):
    events = weighted(make_events(6, 4), [0.0] * 6)
    before, _ = trained(config, events, "flux", budget, steps=0)
    after, logged = trained(config, events, "flux", budget)
    assert np.array_equal(before, after)
    assert "fit/loss" not in logged


def test_the_name_of_the_weights_is_taken(config):
    class Taken(Line):
        def collate(self, events, index, seed):
            return {**super().collate(events, index, seed), "weight": torch.ones(len(index))}

    events = weighted(make_events(3, 5), [1.0] * 3)
    with pytest.raises(PluginError, match="a tensor 'weight', which the engine adds from the column flux"):
        trained(config, events, "flux", workload=Taken())


KINDS = [
    (MuonGan, MuonGanOptions(penalty="pair_slope")),
    (MuonGan, MuonGanOptions(penalty="gradient", gp_every=1, gp_sample_fraction=1.0)),
    (MuonVae, MuonVaeOptions()),
]


def bundles_of(count):
    events = make_events(count, 6)
    columns = {field.name: np.full(count, 2, field.dtype) for field in BUNDLES.events}
    columns |= {"depth_m": np.linspace(1, 2, count, dtype=np.float32)}
    return Events(events.columns | columns, events.multiplicity, abs(events.items))


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_losses_of_bundles_are_weighted_means(kind, options):
    """A loss with weights 1 or 0 is that over the events of weight 1, for the same random numbers."""
    torch.manual_seed(1)
    workload = kind(options)
    model = workload.model()
    events = bundles_of(24)
    assert (events.multiplicity == 0).any()
    batch = workload.collate(events, np.arange(24), (1,))
    order = batch["order"].numpy()
    assert np.array_equal(events.multiplicity[order], batch["multiplicity"].numpy())
    for phase in workload.phases():
        plain, found = phase.loss(model, batch, torch.Generator().manual_seed(2))
        equal = {**batch, "weight": torch.full((24,), 5.0)}
        same, also = phase.loss(model, equal, torch.Generator().manual_seed(2))
        torch.testing.assert_close(plain, same, rtol=1e-5, atol=1e-6)
        assert {name: float(value) for name, value in also.items()} == pytest.approx(
            {name: float(value) for name, value in found.items()}, rel=1e-4, abs=1e-6
        )
        means = []
        for one in range(2):  # the halves, each alone: their mean is the whole
            weight = torch.tensor((np.arange(24) % 2 == one).astype(np.float32))
            loss, _ = phase.loss(model, {**batch, "weight": weight}, torch.Generator().manual_seed(2))
            means.append(loss)
        torch.testing.assert_close(sum(means) / 2, plain, rtol=1e-4, atol=1e-5)
        assert not torch.isclose(means[0], means[1], rtol=1e-4)


def test_the_order_of_a_batch_is_what_it_was():
    events = bundles_of(40)
    index = np.arange(40)[::-1].copy()
    batch = MuonVae(MuonVaeOptions()).collate(events, index, (7, 8))
    chosen = np.random.default_rng((7, 8)).permutation(index)
    chosen = chosen[np.argsort(events.multiplicity[chosen] == 0, kind="stable")]
    assert np.array_equal(index[batch["order"].numpy()], chosen)
