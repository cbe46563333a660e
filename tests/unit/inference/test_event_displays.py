"""A workload shows the events that it chooses: exactly these, with their items, in its order."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from counting import NAMED, Counting, Echo, Showing, checkpoint_of
from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import PluginError
from crpipe.core.files import read_json
from crpipe.core.text import NullProgress
from crpipe.events.batch import Events
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.inference.evaluate import evaluate_link
from crpipe.inference.event_displays import show_events
from toy import RANGES, make_events, toy_config, write_shards


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """An untrained model of the workload that shows events, put back after the test."""
    for name in ("choose", "look"):
        monkeypatch.setattr(Showing, name, Showing.__dict__[name])
    return open_checkpoint(checkpoint_of(tmp_path / "store", Showing), allowed_plugins=NAMED)


def blocks(events, size):
    return (events.part(first, min(first + size, len(events))) for first in range(0, len(events), size))


def show(trained, events, folder, known=(), size=16, weight=""):
    prediction = {"count": np.arange(len(events))}
    truth = Events(events.columns, events.multiplicity, np.zeros((0, 0), np.float32))
    return show_events(
        trained, (truth, prediction), blocks(events, size), weight, folder, dict.fromkeys(known, 1.0)
    )


def choose(places):
    Showing.choose = staticmethod(lambda _: places)


def test_the_chosen_events_come_with_their_items_in_the_chosen_order(trained, tmp_path):
    events, places, seen = make_events(100, 1), np.array([70, 3, 99, 15, 16, 3]), []
    choose(places)

    def look(model, found, prediction):
        seen.append((found, prediction))
        assert not model.training
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            model(torch.ones(1, 1)).sum().backward()
        return {"gradient": float(model.weight.grad), "nan": np.nan}

    Showing.look = staticmethod(look)
    trained.model.train()
    assert show(trained, events, tmp_path, weight="energy_gev") == {"gradient": 1.0}
    ((found, prediction),) = seen
    expected = events.take(places)
    assert np.array_equal(found.items, expected.items)
    assert np.array_equal(found.multiplicity, expected.multiplicity)
    assert all(np.array_equal(found.columns[name], values) for name, values in expected.columns.items())
    assert np.array_equal(found.columns["weight"], expected.columns["energy_gev"])
    assert prediction["count"].tolist() == places.tolist()


def test_memory_is_that_of_a_block_and_the_chosen_events(trained, tmp_path):
    events, alive, read = make_events(400, 1), [], []

    def stream():
        for block in blocks(events, 20):
            own = Events(block.columns, block.multiplicity, block.items.copy())
            assert sum(each() is not None for each in alive) <= 1
            alive.append(weakref.ref(own.items))
            read.append(len(own))
            yield own

    choose(np.array([5, 210]))
    truth = Events(events.columns, events.multiplicity, np.zeros((0, 0), np.float32))
    show_events(trained, (truth, {"count": events.multiplicity}), stream(), "", tmp_path, {})
    assert sum(read) == 220  # nothing behind the last chosen event is read


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (np.arange(1001) % 100, "1001 events are chosen; choose at most 1000"),
        (np.array([0, 100]), "the places 0 to 100 are not all among the 100 events, which are 0 to 99"),
        (np.array([-1]), "the places -1 to -1 are not all"),
        (np.ones(100, bool), r"found bool of the shape \[100\]; np.flatnonzero"),
        (np.array([1.0]), "found float64"),
        (np.array([[1]]), r"found int64 of the shape \[1, 1\]"),
    ],
)
def test_another_choice_is_refused(trained, tmp_path, places, message):
    choose(places)
    with pytest.raises(PluginError, match=f"counting:Showing.shown: .*{message}"):
        show(trained, make_events(100, 1), tmp_path)


def test_without_a_choice_nothing_is_shown(trained, tmp_path):
    choose(np.array([]))
    assert show(trained, make_events(10, 1), tmp_path) == {}
    assert not list(tmp_path.glob("*.svg"))


def test_a_number_of_score_is_not_replaced(trained, tmp_path):
    with pytest.raises(PluginError, match="score gives a number largest too; give it another name"):
        show(trained, make_events(40, 1), tmp_path, known=["largest"])


def test_an_error_in_show_names_the_events(trained, tmp_path):
    Showing.look = staticmethod(lambda *_: {}["colour"])
    with pytest.raises(PluginError, match="counting:Showing.show failed on 30 events, the first from file"):
        show(trained, make_events(100, 1), tmp_path)


def test_whole_events_are_shown_with_their_predictions(trained, tmp_path):
    events, seen = make_events(50, 1), []
    choose(np.array([40, 2]))
    Showing.look = staticmethod(lambda *given: seen.append(given[2]) or {})

    class Whole(Echo, Showing):
        def shown(self, truth, prediction):
            return Showing.choose(truth)

    show_events(
        replace(trained, workload=Whole(None)), (events, events), blocks(events, 16), "", tmp_path, {}
    )
    assert np.array_equal(seen[0].items, events.take(np.array([40, 2])).items)


def test_an_evaluation_shows_events_of_the_model_alone(trained, tmp_path, monkeypatch):
    first, second, _ = RANGES
    config = toy_config(
        tmp_path, train={"workload": "counting:Showing"}, evaluate={"events": 110, "batch_events": 30}
    )
    campaign = Campaign.open(config)
    for number, name in enumerate((first, second)):
        events = make_events(60, number)
        write_shards(campaign.paths.shards(name), [("validation-0", "validation", events)], campaign.data)
    checkpoint = checkpoint_of(campaign.paths.store(second), Showing)
    calls, whole = [], []

    def look(model, found, prediction):
        calls.append((found, prediction))
        return {"largest": float(found.multiplicity[0])}

    Showing.look = staticmethod(look)
    monkeypatch.setattr(
        Showing, "baseline", lambda self, events: self.predict(None, events, None), raising=False
    )
    monkeypatch.setattr(Counting, "seen", staticmethod(whole.append))
    evaluate_link(campaign, second, NullProgress(), checkpoint=str(checkpoint))
    folder = campaign.paths.evaluation(checkpoint.stem)
    ((found, prediction),) = calls
    assert len(found) == 30
    assert np.array_equal(prediction["count"], found.multiplicity)  # events and predictions belong together
    assert (np.diff(found.multiplicity.astype(int)) <= 0).all()
    assert len(found.items) == found.multiplicity.sum()
    numbers = read_json(folder / "metrics.json")
    assert numbers["values"]["largest"] == found.multiplicity[0]
    assert numbers["values"]["own"] == numbers["baseline"]["own"]
    assert "largest" not in numbers["baseline"]
    assert (folder / "display.svg").exists()
    assert not (folder / "baseline").exists()
