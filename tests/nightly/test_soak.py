"""Training for long takes no more memory, files or threads than training for a while; `make soak`.

``SOAK_STEPS`` (20,000) is the number of steps. One process, started by `crpipe train`, with validation, the
best checkpoint, snapshots, metrics, histograms and TensorBoard; it is watched from outside.
"""

import os
import shutil
import time

import pytest

from runs import RANGES, Campaign
from soaking import configure, slope, soak

STEPS = int(os.environ.get("SOAK_STEPS", "20000"))
WARM_UP = 2000  # steps in which caches and pools of memory fill
# A job of a day (resources.train.runtime_minutes) with steps of 0.1 s would grow by 430 MiB: a seventieth of
# what it is given (resources.train.mem_mb).
MOST_MIB = 0.5  # for each 1,000 steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    campaign = Campaign.begin(tmp_path_factory.mktemp("soak") / "campaign")
    campaign.snakemake(" ".join(f"results/shards/{name}/manifest.json" for name in RANGES))
    yield campaign
    shutil.rmtree(campaign.folder)


def measure(campaign, steps, **train):
    """Train; print and return the samples after the warm-up, and the slope of memory with its error."""
    configure(campaign, steps, **train)
    begun = time.monotonic()
    samples = soak(campaign, every=max(10, steps // 200))
    last = samples[-1]
    assert last.step >= steps - steps // 100
    kept = [each for each in samples if each.step > WARM_UP]
    growth, error = slope([each.step for each in kept], [each.memory for each in kept])
    minutes = (time.monotonic() - begun) / 60
    print(  # noqa: T201
        f"\n{last.step} steps in {minutes:.1f} minutes, {len(kept)} samples after step {kept[0].step}:\n"
        f"memory {kept[0].memory:.1f} MiB at first, {last.memory:.1f} at the end, "
        f"{max(each.memory for each in kept):.1f} at most; slope {growth:+.4f} ± {error:.4f} MiB/1,000 steps "
        f"(at most {MOST_MIB})\n"
        f"memory at every tenth: {' '.join(f'{each.memory:.1f}' for each in kept[:: len(kept) // 10])}\n"
        + "".join(
            f"{what} {min(values)} to {max(values)}, {values[0]} at first, {values[-1]} at the end\n"
            for what, values in (
                ("open files", [each.files for each in kept]),
                ("threads", [each.threads for each in kept]),
            )
        )
    )
    return kept, growth, error


def grown(values):
    """Compare the largest value of the second half with that of the first."""
    half = len(values) // 2
    return max(values[half:]) - max(values[:half])


def test_a_long_training_grows_neither_in_memory_nor_in_files_nor_in_threads(split, tmp_path):
    kept, growth, error = measure(split.copy(tmp_path / "campaign"), STEPS)
    assert error < MOST_MIB / 2, "the samples scatter too much to tell: run more steps"
    assert growth < MOST_MIB
    assert grown([each.files for each in kept]) <= 0
    assert grown([each.threads for each in kept]) <= 0


def test_a_leak_is_seen(split, tmp_path):
    """The same measurement of a training that loses 5 MB and 100 files in 1,000 steps."""
    kept, growth, error = measure(split.copy(tmp_path / "campaign"), 4000, loggers=["soaking:Leaking"])
    assert growth - 2 * error > MOST_MIB
    assert grown([each.files for each in kept]) > 50
