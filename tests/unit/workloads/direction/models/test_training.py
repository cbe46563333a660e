"""A small model learns a batch of simulated tracks by heart, in the steps of the training."""

import numpy as np
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.text import NullProgress
from crpipe.events.batch import concatenate
from crpipe.inference.probe import ProbeBatch, probe_batch
from crpipe.workloads.direction.reading.kaggle import SimulatedFiles
from crpipe.workloads.direction.simulator.files import write_batch
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.direction.simulator.physics import write_geometry
from side_tables import with_tables

STEPS = 150  # after 100 and after 150, DeepSet is at about 10 degrees
TRANSFORMER = {"width": 32, "layers": 2, "heads": 2, "feedforward": 64}


@pytest.fixture(scope="module")
def tracks(tmp_path_factory):
    """32 tracks, and the table of the sensors that saw them."""
    folder = tmp_path_factory.mktemp("tracks")
    write_geometry(folder / "sensor_geometry.csv")
    tables = {"geometry": folder / "sensor_geometry.csv"}
    options = NeutrinoTelescopeOptions(events_per_file=32, cascade_fraction=0)
    write_batch(options, 1, 1, folder / "batch_1.parquet")
    return concatenate(list(SimulatedFiles().rows(folder / "batch_1.parquet", tables))), tables


def fit(tracks, folder, name, **options):
    events, tables = tracks
    config = validate(
        {
            "results": str(folder),
            "source": {"reader": "crpipe.workloads.direction.reading.kaggle:SimulatedFiles"},
            "train": {
                "workload": f"crpipe.workloads.direction:{name}",
                "device": "cpu",
                "threads": 1,
                "gradient_clip_norm": 1.0,
            },
            "load": {"batch_size": 32},
            "model": {"learning_rate": 3e-3, "max_doms": 96, "pulses_per_dom": 4} | options,
        }
    )
    campaign = with_tables(Campaign.open(config), tables)
    (loss,) = probe_batch(campaign, ProbeBatch(events, "batch_1.parquet"), STEPS, NullProgress()).losses
    return loss.before, loss.after


@pytest.mark.slow
def test_32_tracks_are_learned_by_heart(tracks, tmp_path):
    before, after = np.degrees(fit(tracks, tmp_path, "DeepSet", loss="angle"))
    assert 60 < before < 120
    assert after < 20


@pytest.mark.slow
def test_kappa_rises_with_what_is_learned(tracks, tmp_path):
    before, after = fit(tracks, tmp_path, "FlatTransformer", **TRANSFORMER)
    assert before == pytest.approx(np.log(4 * np.pi), abs=0.3)  # every direction alike
    assert after < -1.5  # more than 50 times as dense where the truth is
