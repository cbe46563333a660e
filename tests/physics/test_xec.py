"""Simulated gammas through the whole pipeline: as good as they should be, and not worse than at the start.

The settings are those of the demo. Takes four minutes of CPU; `make test-physics`. Numbers: pytest -s.
"""

import json
import shutil
import subprocess

import pytest

from runs import BIN, REPOSITORY, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """The numbers of the campaign's evaluation."""
    folder = tmp_path_factory.mktemp("gammas")
    for name in ("Snakefile", "workflow", "profiles", "config"):
        (folder / name).symlink_to(REPOSITORY / name)
    command = [BIN / "snakemake", "all", "--configfile", "config/xec-demo.yaml"]
    done = subprocess.run(command, cwd=folder, env=environment({}), check=False)
    assert done.returncode == 0
    (path,) = folder.glob("runs/xec-demo/evaluation/*/metrics.json")
    yield json.loads(path.read_text())
    shutil.rmtree(folder)


@pytest.mark.parametrize(("name", "limit"), [("energy_resolution", 1.1), ("distance_resolution", 1.15)])
def test_a_network_is_not_worse_than_the_regression_from_which_it_begins(metrics, name, limit):
    network, simple = metrics["values"], metrics["baseline"]
    error = f"{name}_error"
    pair = [f"{each[name]:.3f} ± {each[error]:.3f}" for each in (network, simple)]
    print(f"\n{name}: {', regression '.join(pair)}, {metrics['events']} events")  # noqa: T201
    assert network[name] < min(limit, simple[name] + network[error])


def test_no_task_is_biased_by_more_than_a_fifth_of_its_resolution(metrics):
    values = metrics["values"]
    for name in ("energy", "u", "v", "w"):
        limit = 0.2 * values[f"{name}_resolution"] + 3 * values[f"{name}_bias_error"]
        assert abs(values[f"{name}_bias"]) < limit
