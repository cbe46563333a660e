"""The longer setting of muon bundles, from simulation to a judge that knows nothing but files.

Half an hour; `make test-physics`. Numbers: pytest -s, and docs/physics.md.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runs import BIN, REPOSITORY, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
SETTINGS = ("--config", "config/config.yaml", "--config", "config/muons-long.yaml")
# Showers that no training saw: with another seed, at other depths.
FRESH = {
    "seed": 4711,
    "simulator.showers_per_file": 5000,
    "simulator.depths": 3,
    "simulator.files_per_range": 12,
}
JUDGE = Path(__file__).parent / "judge.py"


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """What the judge says, line by line: the name of a number with its value and error."""
    folder = tmp_path_factory.mktemp("bundles")
    for name in ("Snakefile", "workflow", "profiles", "config"):
        (folder / name).symlink_to(REPOSITORY / name)

    def call(*command):
        run = subprocess.run(
            command, cwd=folder, env=environment({}), check=True, capture_output=True, text=True
        )
        return run.stdout

    call(BIN / "snakemake", "train_all", "--configfile", "config/muons-long.yaml")
    sets = [word for key, value in FRESH.items() for word in ("--set", f"{key}={value}")]
    sets += ["--set", "ranges.last=23", "--set", "ranges.size=12"]
    call(BIN / "crpipe", *SETTINGS, *sets, "simulate", "1", "--out", "fresh")
    call(sys.executable, JUDGE, "pick", *sorted((folder / "fresh").glob("*.parquet")), "truth.parquet")
    for which, name in (("column", "given.parquet"), ("predicted", "own.parquet")):
        wanted = ("--in", "truth.parquet", "--multiplicity", which, "--out", name)
        call(BIN / "crpipe", *SETTINGS, "generate", "--checkpoint", "latest", *wanted)
    said = call(sys.executable, JUDGE, "judge", "truth.parquet", "given.parquet", "own.parquet")
    print(said)  # noqa: T201
    yield re.findall(r"^ *(.+): (-?[\d.]+) \+- ([\d.]+)$", said, re.MULTILINE), said
    shutil.rmtree(folder)


def test_bundles_are_hardly_recognised(judged):
    found = {name: float(value) for name, value, _ in judged[0] if name.startswith("AUC")}
    assert len(found) == 3
    assert max(found.values()) <= 0.52


def test_leading_muons_of_large_bundles_have_their_energy(judged):
    (value,) = (float(value) for name, value, _ in judged[0] if "largest log E" in name)
    assert abs(10**value - 1) < 0.05


def test_as_many_events_have_no_muon(judged):
    """Within 0.01, or two errors where few showers have so little energy."""
    found = [(float(value), float(error)) for name, value, error in judged[0] if "P(no muon)" in name]
    assert len(found) == 8
    assert all(abs(value) < max(0.01, 2 * error) for value, error in found)


def test_the_spectrum_is_that_of_the_simulation_in_every_bin_that_is_known(judged):
    (bins, beyond) = re.search(r"of (\d+) bins with errors below 5 %, (\d+) are off", judged[1]).groups()
    assert int(bins) > 30
    assert int(beyond) == 0
