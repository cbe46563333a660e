"""Fresh events of an evaluation: one of each new group, by the simulator or from files of another seed."""

import numpy as np
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.errors import PluginError
from crpipe.core.text import NullProgress
from crpipe.inference.fresh import fresh_events
from crpipe.workloads.muons.simulator.files import AirShowers

READER = "crpipe.workloads.muons.reading.parquet:Bundles"
SIMULATOR = "crpipe.workloads.muons.simulator.files:AirShowers"


def campaign(folder, groups=30, simulator=SIMULATOR):
    return Campaign.open(
        validate(
            {
                "results": str(folder / "results"),
                "runs": str(folder / "runs"),
                "ranges": {"first": 0, "last": 7, "size": 8},
                "source": {"uri": "synthetic://", "simulator": simulator, "reader": READER},
                "simulator": {"showers_per_file": 5, "depths": 3},
                "evaluate": {"fresh_groups": groups},
            }
        )
    )


def fresh(folder, **options):
    return fresh_events(campaign(folder, **options), ["0000000-0000007"], folder / "scratch", NullProgress())


def identities(events):
    return list(zip(events.columns["primary_major_id"], events.columns["primary_minor_id"], strict=True))


def test_every_fresh_event_is_a_group_of_its_own_and_equal_calls_give_equal_events(tmp_path):
    one, again = fresh(tmp_path), fresh(tmp_path)
    assert len(one) == len(set(identities(one))) == 30
    assert one.items.tobytes() == again.items.tobytes()
    assert one.columns["source_row"].tolist() == list(range(30))
    assert len(np.unique(one.columns["depth_m"])) == 3


def test_a_simulator_without_fresh_events_writes_files_with_another_seed(tmp_path, monkeypatch):
    monkeypatch.delattr(AirShowers, "fresh")
    one, again = fresh(tmp_path), fresh(tmp_path)
    assert len(one) == len(set(identities(one))) == 30
    assert one.items.tobytes() == again.items.tobytes()
    assert len(np.unique(one.columns["depth_m"])) > 1  # any of the rows of a shower
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [lambda *_: None, lambda self, groups, seed: self.fresh_of(groups - 1, seed)]
)
def test_a_simulator_that_gives_something_else_is_named(tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(AirShowers, "fresh_of", AirShowers.fresh, raising=False)
    monkeypatch.setattr(AirShowers, "fresh", wrong)
    with pytest.raises(PluginError, match=r"AirShowers.fresh: expected 30 events with the columns depth_m, "):
        fresh(tmp_path)
