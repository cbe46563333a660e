"""Distances beside those of JetNet, the field's reference, which runs in an environment of its own."""

import json
import subprocess

import numpy as np
import pytest
from unit.report.conftest import make_sample

from crpipe.workloads.muons.scoring import metrics
from crpipe.workloads.muons.scoring.sample import log_energy, radius
from services import JETNET

pytestmark = pytest.mark.jetnet
BATCHES = 20
ASK = """
import json, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from jetnet.evaluation import w1p
bundles = np.load(sys.argv[1])
given = {"num_eval_samples": int(sys.argv[2]), "num_batches": int(sys.argv[3]), "exclude_zeros": False}
sides = [bundles[name] for name in ("real", "generated", "real_filled", "generated_filled")]
print(json.dumps([list(numbers) for numbers in w1p(*sides, **given)]))
"""


def padded(sample):
    """Lay out bundles as JetNet wants them: [events, muons, (log energy, radius)], and which are filled."""
    width = int(sample.multiplicity.max())
    filled = np.arange(width) < sample.multiplicity[:, None]
    features = np.zeros((*filled.shape, 2))
    features[filled] = np.stack([log_energy(sample.muons), radius(sample.muons)], axis=1)
    return features, filled


def bootstrapped(values, real, generated):
    """Measure one distance over all muons: its mean over bootstrap samples of events, and its spread."""
    rng = np.random.default_rng(1)
    events = len(real.multiplicity)
    drawn = rng.multinomial(events, np.full(events, 1 / events), (BATCHES, 2)).astype(float)
    pairs = ((one[real.event], two[generated.event]) for one, two in drawn)
    found = metrics.wasserstein(values(real), values(generated), pairs)
    return found.mean(), found.std()


@pytest.mark.timeout(600)
def test_distances_are_those_of_jetnet(tmp_path):
    real, generated = make_sample(seed=1), make_sample(seed=2, shift=0.05)
    arrays = dict(zip(("real", "real_filled"), padded(real), strict=True))
    arrays |= dict(zip(("generated", "generated_filled"), padded(generated), strict=True))
    np.savez(tmp_path / "bundles.npz", **arrays)
    numbers = (str(len(real.multiplicity)), str(BATCHES))
    asked = [JETNET, "-c", ASK, tmp_path / "bundles.npz", *numbers]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    means, spreads = json.loads(told.splitlines()[-1])
    observables = (lambda sample: log_energy(sample.muons), lambda sample: radius(sample.muons))
    for values, theirs, spread in zip(observables, means, spreads, strict=True):
        ours, error = bootstrapped(values, real, generated)
        # Two means over as many bootstrap samples each: five standard errors apart at most.
        assert ours == pytest.approx(theirs, abs=5 * np.hypot(spread, error) / np.sqrt(BATCHES))
        assert theirs > 5 * spread / np.sqrt(BATCHES)
        assert 0.4 < error / spread < 2.5
