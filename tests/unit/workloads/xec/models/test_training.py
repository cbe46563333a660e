"""What the models learn: 64 gammas by heart, and hidden sensors better than their neighbours tell."""

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.text import NullProgress
from crpipe.inference.probe import ProbeBatch, probe_batch
from crpipe.workloads.xec.sensors import write_sensor_map
from side_tables import with_tables
from xenon_models import SMALL
from xenon_toy import make_gammas

pytestmark = pytest.mark.slow


def fit(folder, name, steps, gammas, **options):
    """Train so many steps on one batch; return the losses before and after."""
    write_sensor_map(folder / "sensors.csv")
    config = validate(
        {
            "run": "gammas",
            "results": str(folder / "results"),
            "runs": str(folder / "runs"),
            "source": {
                "uri": "synthetic://",
                "reader": "crpipe.workloads.xec.reading.root:RootFiles",
                "simulator": "crpipe.workloads.xec.simulator.files:XenonDetector",
            },
            "ranges": {"first": 1, "last": 1, "size": 1},
            "load": {"batch_size": 64, "max_items": 64 * 4760},
            "train": {
                "workload": f"crpipe.workloads.xec:{name}",
                "device": "cpu",
                "threads": 1,
                "schedule": {"warmup_steps": 1},
                "gradient_clip_norm": 5.0,
            },
            "model": {**SMALL, "learning_rate": 5e-3, **options},
        }
    )
    campaign = with_tables(Campaign.open(config), {"sensors": folder / "sensors.csv"})
    (loss,) = probe_batch(
        campaign, ProbeBatch(make_gammas(gammas), "gammas.root"), steps, NullProgress()
    ).losses
    return loss.before, loss.after


def test_64_gammas_are_learned_by_heart(tmp_path):
    tasks = {"energy": {}, "position": {}, "time": {}}
    before, after = fit(tmp_path, "Regressor", 120, 64, tasks=tasks, head=32, photons_at_50_mev=1e5)
    assert after < before / 10


@pytest.mark.parametrize(("name", "factor"), [("Inpainter", 2.0), ("MaskedAutoencoder", 1.3)])
def test_a_masked_model_becomes_better_than_the_neighbours(tmp_path, name, factor):
    """Training begins there; hidden sensors are found from the others, whichever are hidden."""
    before, after = fit(tmp_path, name, 60, 16)
    assert after < before / factor
