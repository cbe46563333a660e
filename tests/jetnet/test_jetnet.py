"""Distances beside those of JetNet, the field's reference, which runs in an environment of its own."""

import json
import subprocess

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from crpipe.statistics.distances import Values, frechet, kernel, wasserstein
from crpipe.statistics.groups import value_and_error
from services import JETNET

pytestmark = pytest.mark.jetnet
EVENTS = 50_000
BATCHES = 20
ASK = """
import json, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from jetnet.evaluation import fpd, kpd, w1p
sides = np.load(sys.argv[1])
real, generated = sides["real"], sides["generated"]
items = [side[:, :1, None] for side in (real, generated)]
print(json.dumps({
    "fpd": [float(each) for each in fpd(real, generated)],
    "kpd": [float(each) for each in kpd(real, generated)],
    "w1": [float(np.ravel(each)[0]) for each in w1p(*items, num_eval_samples=10_000, num_batches=20,
                                                   exclude_zeros=False)],
}))
"""


@pytest.mark.timeout(600)
def test_distances_are_those_of_jetnet(tmp_path):
    rng = np.random.default_rng(1)
    real, generated = (rng.normal(size=(EVENTS, 5)) @ np.diag([1, 2, 0.5, 1, 1]) for _ in range(2))
    generated = generated * 1.1 + 0.1
    np.savez(tmp_path / "features.npz", real=real, generated=generated)
    asked = [JETNET, "-c", ASK, tmp_path / "features.npz"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    theirs = json.loads(answer.splitlines()[-1])
    every = np.arange(EVENTS)
    ours = {
        "fpd": value_and_error(frechet(real, generated, every, np.ones(EVENTS)), every),
        "kpd": value_and_error(kernel(real, generated, every, np.ones(EVENTS)), every),
    }
    for name, (value, error) in ours.items():
        expected, spread = theirs[name]
        assert value == pytest.approx(expected, abs=5 * np.hypot(error, spread)), name
        assert value > 5 * error, name
    cell = np.zeros(EVENTS, int)
    sides = [Values(side[:, 0], every, np.ones(EVENTS), cell) for side in (real, generated)]
    distance = wasserstein(*sides, every)(np.ones(EVENTS))
    assert distance == pytest.approx(wasserstein_distance(real[:, 0], generated[:, 0]), rel=0.05)
    assert distance == pytest.approx(theirs["w1"][0], abs=5 * theirs["w1"][1])
