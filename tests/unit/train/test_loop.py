"""The same weights, errors and snapshots come out, whatever is collated ahead and wherever training stops."""

import itertools
import threading

import pytest

from crpipe.core.errors import PluginError
from crpipe.core.files import sha256
from crpipe.core.signals import StopRequest
from crpipe.core.text import NullProgress
from models import interrupted, train_range, trained
from toy import RANGES, Toy, toy_config

WAYS = [(0, 0), (0, 2), (1, 0), (1, 2), (3, 0), (3, 2)]  # load.collate_workers, load.prefetch


def configure(root, workers, prefetch):
    load = {"batch_size": 16, "max_items": 20, "collate_workers": workers, "prefetch": prefetch}
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


def test_a_snapshot_after_resumes_has_the_bytes_of_one_without(tmp_path, monkeypatch):
    """Whatever a snapshot holds is restored: means, averages, throttles, the best value."""
    keys = {"snapshot_steps": 1, "validate_every": 2, "validate_events": 40, "monitor": "generator/loss"}
    configs = [toy_config(tmp_path / name, train=keys) for name in ("resumed", "whole")]
    for _ in range(5):
        interrupted(configs[0], RANGES[0])
    steps = itertools.count(1)
    monkeypatch.setattr(StopRequest, "reason", lambda _: "a test" if next(steps) == 5 else "")
    interrupted(configs[1], RANGES[0])
    files = [{path.name for path in config.paths().store(RANGES[0]).glob("*.pt")} for config in configs]
    assert files[0] == files[1]  # the names hold the hashes
    assert sorted(name.partition("-")[0] for name in files[0]) == ["best", "snapshot", "snapshot"]


def test_histograms_leave_the_buffers_and_the_mode_of_the_model_as_they_were(tmp_path, monkeypatch):
    def look(_, model, *__):
        model.eval()  # without its dropout
        model["fitted"].centre.add_(1.0)
        return {}

    monkeypatch.setattr("crpipe.train.loop.HISTOGRAM_LOGS", 1)
    found = []
    for name, histograms in (("plain", Toy.histograms), ("changing", look)):
        monkeypatch.setattr(Toy, "histograms", histograms)
        receipt, _, _ = trained(toy_config(tmp_path / name, train={"workload": "toy:FittedToy"}))
        found.append(receipt["sha256"])
    assert found[0] == found[1]
