"""The errors of the AUCs are true: two simulations of the same showers differ from 0.5 by about their errors.

The floor of an AUC needs no model. Each seed draws the held-out showers of a campaign of the demo's size,
once as its files hold them and once again as `crpipe evaluate` does. A minute of CPU a seed, FLOORS=100
seeds: `make test-small`. The numbers are printed: pytest -s.
"""

import os

import numpy as np
import pytest

from crpipe.campaign.readers import open_reader
from crpipe.config.loading import load_config
from crpipe.core.ranges import Range
from crpipe.events.batch import concatenate
from crpipe.statistics.groups import value_and_error
from crpipe.workloads.muons.scoring import classify
from crpipe.workloads.muons.scoring.score import pair_of
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from runs import REPOSITORY

SEEDS = int(os.environ.get("FLOORS", "100"))
SHARES = (0.55, 0.80)  # 0.68 of a Gaussian, 0.60 of Student's t with three degrees of freedom
NAMES = (*classify.GIVEN, *classify.OWN)
EVENTS = 20_000
pytestmark = [pytest.mark.slow, pytest.mark.timeout(6 * 3600)]


def held_out(config, seed, folder):
    """The held-out showers of one campaign: one file with as many as its held-out share of all files."""
    ranges = (config.ranges.last - config.ranges.first + 1) // config.ranges.size
    options = AirShowersOptions(**config.options("simulator"))
    showers = ranges * options.files_per_range * options.showers_per_file * config.split.validation_fraction
    of_one = options.model_copy(update={"files_per_range": 1, "showers_per_file": round(showers)})
    name = Range.parse("0000000-0000000")
    (file,) = AirShowers(of_one).files(name)
    AirShowers(of_one).write(name, file, seed, folder / file)
    reader = open_reader(config.source.reader, config.options("reader"))
    events = concatenate(list(reader.rows(folder / file, {})))
    bulk = np.flatnonzero(events.multiplicity <= config.split.outlier_above)
    chosen = np.random.default_rng([seed, 1]).permutation(bulk)[:EVENTS]
    return options, events.take(chosen)


def floors(config, seed, folder):
    options, truth = held_out(config, seed, folder)
    again = AirShowers(options).again(truth.columns, 10_000 + seed)
    real, generated = pair_of(truth, again)
    judged = classify.judges(real, generated, classify.GIVEN | classify.OWN)
    assert judged.keys() == {*NAMES}
    return [value_and_error(judged[name].statistic, real.group) for name in NAMES]


def test_each_floor_is_within_its_error_of_a_half_as_often_as_it_should_be(tmp_path):
    config = load_config((REPOSITORY / "config" / "config.yaml", REPOSITORY / "config" / "demo.yaml"), ())
    table = np.array([floors(config, seed, tmp_path) for seed in range(SEEDS)])
    auc, error = table[..., 0], table[..., 1]
    pulls = (auc - 0.5) / error
    shares, rms = np.mean(np.abs(pulls) <= 1, axis=0), np.sqrt(np.mean(pulls**2, axis=0))
    spread = auc.std(axis=0, ddof=1)
    for name, *row in zip(NAMES, auc.mean(axis=0), spread, error.mean(axis=0), rms, shares, strict=True):
        print(f"| `{name}` | {' | '.join(f'{value:.4f}' for value in row)} |")  # noqa: T201 - for the docs
    low, high = SHARES
    assert ((shares >= low) & (shares <= high)).all(), dict(zip(NAMES, shares, strict=True))
