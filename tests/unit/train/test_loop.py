"""Micro-batches that are collated ahead of the training: same weights, same errors, no thread left."""

import threading

import pytest

from crpipe.core.errors import PluginError
from crpipe.core.files import sha256
from crpipe.core.text import NullProgress
from models import train_range
from toy import RANGES, Toy, toy_config

WAYS = [(0, 0), (0, 2), (1, 0), (1, 2), (3, 0), (3, 2)]  # load.collate_workers, load.prefetch


def configure(root, workers, prefetch):
    load = {"batch_events": 16, "budget_items": 20, "collate_workers": workers, "prefetch": prefetch}
    return toy_config(root, load=load)


def loader_threads():
    return [each for each in threading.enumerate() if each.name.startswith(("loader", "collate"))]


def test_weights_are_the_same_for_any_number_of_threads(tmp_path, monkeypatch):
    found, threads = {}, {}
    for way in WAYS:
        seen = threads[way] = set()
        monkeypatch.setattr(
            Toy, "on_collate", staticmethod(lambda seen=seen: seen.add(threading.current_thread().name))
        )
        config = configure(tmp_path / "-".join(map(str, way)), *way)
        train_range(config, RANGES[0], NullProgress())
        (path,) = config.paths().store(RANGES[0]).glob("checkpoint-*.pt")
        found[way] = sha256(path)
    assert len(set(found.values())) == 1, found
    for (workers, prefetch), names in threads.items():
        ahead = workers > 0 and prefetch > 0
        assert {name.startswith("collate") for name in names} == {ahead}
    assert loader_threads() == []


def test_an_error_names_the_same_events_at_the_same_step(tmp_path, monkeypatch):
    collate, told = Toy.collate, {}

    def broken(self, events, index, seed):
        if 77 in events.columns["source_row"][index]:
            raise KeyError("charge")
        return collate(self, events, index, seed)

    monkeypatch.setattr(Toy, "collate", broken)
    for way in WAYS:
        config = configure(tmp_path / "-".join(map(str, way)), *way)
        with pytest.raises(
            PluginError, match=r"toy:Toy.collate failed on \d+ events, .* file 0 row"
        ) as error:
            train_range(config, RANGES[0], NullProgress())
        told[way] = str(error.value)
    assert len(set(told.values())) == 1, told
    assert loader_threads() == []
