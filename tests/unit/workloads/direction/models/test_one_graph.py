"""A loss is one graph, and waits for no device: what a compiler and a GPU need."""

from functools import partial

import numpy as np
import pytest
import torch

from directions import WORKLOADS, build, make_events
from one_graph import assert_never_waits, assert_one_graph

MULTIPLICITY = [9, 1, 40, 0, 17, 300]
CASES = [(name, loss) for name in sorted(WORKLOADS) for loss in ("von_mises_fisher", "angle")]


def loss_of(name, loss):
    workload, model = build(name, loss=loss)
    batch = workload.collate(make_events(MULTIPLICITY), np.arange(len(MULTIPLICITY)), (1,))
    return partial(workload.loss, model, batch, torch.Generator()), model


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_one_graph_with_the_same_result(case):
    assert_one_graph(*loss_of(*case))


@pytest.mark.parametrize("case", CASES)
def test_a_loss_and_its_gradients_wait_for_no_device(case):
    assert_never_waits(*loss_of(*case))
