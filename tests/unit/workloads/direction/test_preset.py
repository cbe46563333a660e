"""The configurations of directions that ship with crpipe."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from crpipe.config.loading import load_config
from crpipe.setup.compatibility import check_fit
from crpipe.workloads.direction import FlatTransformer, FlatTransformerOptions
from directions import make_places

CONFIG = Path(__file__).parents[4] / "config"
PRESET = CONFIG / "presets" / "direction.yaml"
BEST = CONFIG / "presets" / "iceaggr-best.yaml"
TRY = CONFIG / "iceaggr-try.yaml"


def mle_bench():
    """Read the test files that the preset names in a comment."""
    line = next(line for line in PRESET.read_text().splitlines() if "# test_files:" in line)
    return yaml.safe_load(line.replace("#", "", 1))["test_files"]


def test_no_event_of_the_preset_or_the_demo_is_an_outlier():
    for path in (PRESET, CONFIG / "direction-demo.yaml"):
        assert load_config([CONFIG / "config.yaml", path]).split.outlier_above > 178_000


def test_the_first_link_of_the_preset_has_its_validation_files():
    """The events that all links are validated on come from the ranges of the first link."""
    config = load_config([CONFIG / "config.yaml", PRESET])
    first = config.chain(has_outliers=True).links[0]
    assert first.ranges[-1] == "0000651-0000660"
    assert len(first.ranges) == 66
    assert config.split.validation_files == ("0000651-0000655",)


def test_reader_and_workload_of_the_preset_fit_together(tmp_path):
    keys = ["source.uri=/kaggle/batch_{number}.parquet", f"results={tmp_path}", f"runs={tmp_path}"]
    keys += [f"source.tables.{name}=/kaggle/{name}" for name in ("meta", "geometry")]
    check_fit(load_config([CONFIG / "config.yaml", PRESET], keys))


def test_the_best_network_of_iceaggr_has_its_size_and_trains_on_its_files():
    """4,985,103 weights there, and here one more: the concentration of the regression's vectors."""
    config = load_config([CONFIG / "config.yaml", PRESET, BEST])
    first = config.chain(has_outliers=True).links[0]
    assert (len(first.ranges), first.ranges[-1]) == (131, "0000651-0000655")
    assert config.split.validation_files == ("0000651-0000655",)
    workload = FlatTransformer(FlatTransformerOptions(**config.options()))
    workload.places = make_places()
    assert sum(map(torch.numel, workload.model().parameters())) == 4_985_103 + 1


def test_a_campaign_from_before_its_options_keeps_its_fingerprint():
    """They are keys only where they are set."""
    newer = {"model.input", "model.residual_scales", "model.dropout"}
    usual, best = (load_config([CONFIG / "config.yaml", PRESET, *more]).train_keys() for more in ([], [BEST]))
    assert newer <= best.keys()
    assert {*usual} == {*best} - newer


def test_what_make_tries_of_it_has_200_steps_of_the_same_network():
    demo = CONFIG / "direction-demo.yaml"
    best, tried = (
        load_config([CONFIG / "config.yaml", *files]) for files in ([PRESET, BEST], [demo, BEST, TRY])
    )
    assert tried.options() == best.options() | {"learning_rate": 1e-3}
    events = tried.options("simulator")["events_per_file"] * (1 - tried.split.validation_fraction)
    assert 215 <= events * tried.train.passes_per_link / tried.load.batch_size < 230


def test_the_test_files_are_those_of_mle_bench(tmp_path):
    selection = pytest.importorskip("sklearn.model_selection")
    _, test = selection.train_test_split(np.arange(1, 661), test_size=0.1, random_state=0)
    assert mle_bench() == sorted(test.tolist())
    more = tmp_path / "test.yaml"
    more.write_text(yaml.safe_dump({"split": {"test_files": mle_bench()}}))
    assert len(load_config([CONFIG / "config.yaml", PRESET, more]).split.test_files) == 66
    assert not {*mle_bench()} & {*range(651, 656)}
