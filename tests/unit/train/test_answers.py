"""What a workload returns is what the engine needs, or a sentence says what was expected and what came."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from crpipe.core.errors import PluginError
from crpipe.events.batch import Events
from crpipe.events.layout import Metric
from crpipe.train.answers import (
    check_generated,
    checked_columns,
    collated,
    loss_of,
    phases_of,
    unmeasured,
)
from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.muons.layout import BUNDLES
from toy import make_events

FIT = Phase("fit", lambda model: model.parameters(), lambda *_: None, OptimizerSpec("adam", 1e-3))


class Lab:
    """A workload that returns what it was built with."""

    def __init__(self, answer):
        self.answer = answer

    def phases(self):
        return self.answer

    def collate(self, events, index, seed):
        return self.answer


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (FIT, "expected a list of Phase, found Phase"),
        ([], "expected a list of Phase, found list"),
        ([FIT, "adam"], "expected a list of Phase, found str in it"),
        ([FIT, FIT], "expected a name of its own for each phase, found fit, fit"),
    ],
)
def test_phases_that_are_none_are_refused(phases, message):
    with pytest.raises(PluginError, match=rf"test_answers:Lab.phases: {message}$"):
        phases_of(Lab(phases))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([torch.zeros(2)], "expected a dict of tensors, found list"),
        ({"x": np.zeros(2)}, r"expected 'x' as a tensor on the CPU, found float64 \[2\]"),
        ({"x": torch.zeros(2, device="meta")}, r"'x' as a tensor on the CPU, found a tensor \[2\] on meta"),
    ],
)
def test_batches_of_anything_but_tensors_are_refused(batch, message):
    with pytest.raises(PluginError, match=rf"test_answers:Lab.collate: .*{message}$"):
        collated(Lab(batch), make_events(3, 1), np.arange(3), ())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(4), r"expected a scalar tensor, the mean over .*metrics\), found a tensor \[4\]"),
        ((torch.zeros(4), {}), r"expected a scalar tensor, .*, found a tensor \[4\]"),
        (1.0, "expected a scalar tensor, .*, found float"),
        ((torch.zeros(()), {}, {}), r"expected a scalar tensor, .*, found tuple"),
        ((torch.zeros(()), {"off": 1.0}), "expected the metric off as a detached scalar tensor, found float"),
        ((torch.zeros(()), [1.0]), "expected a dict of metrics beside the scalar, found list"),
    ],
)
def test_losses_of_another_form_are_refused(result, message):
    phase = Phase("fit", FIT.params, lambda *_: result, FIT.optimizer)
    with pytest.raises(PluginError, match=rf"test_answers:Lab: the loss of phase fit: {message}$"):
        loss_of(Lab(None), phase, torch.nn.Identity(), {}, torch.Generator())


def test_a_scalar_alone_is_a_loss_without_metrics():
    phase = Phase("fit", FIT.params, lambda *_: torch.ones(()), FIT.optimizer)
    assert loss_of(Lab(None), phase, torch.nn.Identity(), {}, torch.Generator()) == (torch.ones(()), {})


def test_an_exception_of_a_loss_is_one_sentence_but_not_that_of_a_full_gpu():
    def raising(error):
        def loss(*_):
            raise error

        return Phase("fit", FIT.params, loss, FIT.optimizer)

    with pytest.raises(PluginError, match=r"the loss of phase fit failed: KeyError: 'x' \(.*line \d+\)$"):
        loss_of(Lab(None), raising(KeyError("x")), torch.nn.Identity(), {}, torch.Generator())
    with pytest.raises(torch.OutOfMemoryError):
        loss_of(Lab(None), raising(torch.OutOfMemoryError()), torch.nn.Identity(), {}, torch.Generator())


def lists(*values):
    found = np.empty(len(values), object)
    for place, each in enumerate(values):
        found[place] = each
    return found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1], "expected Events or a dict of arrays, found list"),
        ({"x": np.zeros((3, 2))}, r"column x has the shape \[3, 2\], expected \[4\]"),
        ({"x": np.zeros((4, 0))}, r"column x has the shape \[4, 0\], expected \[4\]"),
        ({"x": np.zeros((4, 2, 2))}, r"column x has the shape \[4, 2, 2\], expected \[4\]"),
    ],
)
def test_what_is_no_column_for_each_event_is_refused(found, message):
    with pytest.raises(PluginError, match=message):
        checked_columns(found, 4, "lab:Net.predict")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lists(np.zeros(2, np.float32), np.zeros(0)), "column x holds float32 .., float64 ..; a column of"),
        (lists(np.zeros(2), 1.0), r"holds float, float64 \[\]; .* one flat array for each event"),
        (lists(np.zeros((1, 2)), np.zeros((1, 2))), r"holds float64 \[\]\[\]; "),
        (lists(lists("a"), lists("b")), r"holds object \[\]; "),
    ],
)
def test_other_lists_are_refused(column, message):
    with pytest.raises(PluginError, match=message):
        checked_columns({"x": column}, 2, "lab:Net.predict")


def test_events_of_another_number_or_width_are_refused():
    events = make_events(4, 1)
    with pytest.raises(PluginError, match="expected 5 events with 3 item columns, found 4 events with 3"):
        check_generated(events, 5, BUNDLES, "lab:Net.generate")
    narrow = Events(events.columns, events.multiplicity, events.items[:, :2])
    with pytest.raises(PluginError, match="expected 4 events with 3 item columns, found 4 events with 2"):
        check_generated(narrow, 4, BUNDLES, "lab:Net.generate")


def test_generated_events_are_events():
    with pytest.raises(
        PluginError, match="lab:Net.generate: expected Events, 5 of them, found SimpleNamespace"
    ):
        check_generated(SimpleNamespace(items=np.zeros((5, 3))), 5, BUNDLES, "lab:Net.generate")


def test_a_number_that_score_owes_is_missed_with_the_reason():
    metrics = [
        Metric("auc", "AUC"),
        Metric("many", "m", groups=10),
        Metric("rare", "r", needs="a rare event"),
    ]

    def missed(**given):
        return [text.partition("`metrics` declares, ")[2] for text in unmeasured("s", metrics, given, 5)]

    assert missed(auc=0.5) == []
    assert missed(auc=None) == ["found one that is not finite"]
    assert missed(auk=0.5, auk_error=0.1) == ["found auk; did you mean auc?"]
    assert missed() == ["found nothing"]
    assert missed(auc=0.5, rare=None) == []
    assert missed(auc=0.5, rares=1.0) == ["found rares; did you mean rare?"]
