import pytest
import torch

from crpipe.workloads.muons.models import gan

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
