"""A loss is one graph, and waits for no device: what a compiler and a GPU need."""

from functools import partial

import pytest
import torch

from one_graph import assert_never_waits, assert_one_graph
from xenon_models import ALL_TASKS, build, collate
from xenon_toy import make_gammas

CASES = {"Regressor": {"tasks": ALL_TASKS}, "MaskedAutoencoder": {}, "Inpainter": {}}


def loss_of(name):
    made, model = build(name, **CASES[name])
    return partial(made.loss, model, collate(made, make_gammas(4), seed=(1,)), torch.Generator()), model


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_one_graph_with_the_same_result(name):
    assert_one_graph(*loss_of(name))


@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_gradients_wait_for_no_device(name):
    assert_never_waits(*loss_of(name))
