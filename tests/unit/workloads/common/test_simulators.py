"""Files are named after the numbers of their range; what else a simulator owes is in crpipe.contract."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot

from crpipe.core.errors import ConfigError, SourceError
from crpipe.core.ranges import Range
from crpipe.workloads.direction.reading.kaggle import embedded
from crpipe.workloads.direction.simulator.files import NeutrinoTelescope
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.xec.simulator.files import XenonDetector
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

RANGE = Range(42_000, 42_999)


def muon_energies(path):
    return pq.read_table(path)["primary"].combine_chunks().flatten().to_numpy().reshape(-1, 4)[:, 0]


def neutrino_energies(path):
    return embedded(pq.read_schema(path))["energy_gev"].to_numpy()


def gamma_energies(path):
    with uproot.open(path) as file:
        return file["tree"]["energyTruth"].array(library="np")


SIMULATORS = [  # each with the names of its files, and how to read the energies of its events
    (
        AirShowers(AirShowersOptions(files_per_range=3, showers_per_file=5, depths=2)),
        "bundles-00{}.parquet",
        muon_energies,
    ),
    (
        NeutrinoTelescope(NeutrinoTelescopeOptions(files_per_range=3, events_per_file=5)),
        "batch_{}.parquet",
        neutrino_energies,
    ),
    (
        XenonDetector(XenonDetectorOptions(files_per_range=3, events_per_file=5)),
        "gammas_0{}.root",
        gamma_energies,
    ),
]
each_simulator = pytest.mark.parametrize(("simulator", "pattern", "energies"), SIMULATORS)


@each_simulator
def test_files_of_a_range_are_numbered_and_no_other_file_is_written(simulator, pattern, energies, tmp_path):
    assert simulator.files(RANGE) == [pattern.format(number) for number in (42_000, 42_001, 42_002)]
    with pytest.raises(ConfigError, match=r"files_per_range: 3 .* 0000000-0000001"):
        simulator.files(Range(0, 1))
    other = pattern.format(42_003)
    with pytest.raises(SourceError, match=other):
        simulator.write(RANGE, other, 1, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@each_simulator
def test_files_of_other_numbers_and_seeds_hold_other_events(simulator, pattern, energies, tmp_path):
    """Not only other numbers of the same events."""
    found = []
    for seed, number in ((1, 42_000), (1, 42_001), (2, 42_000)):
        simulator.write(RANGE, pattern.format(number), seed, tmp_path / f"{seed}-{number}")
        found.append(np.unique(energies(tmp_path / f"{seed}-{number}")))
    assert all(len(each) >= 5 for each in found)
    assert len(np.unique(np.concatenate(found))) == sum(map(len, found))
