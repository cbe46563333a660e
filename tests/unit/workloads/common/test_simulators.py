"""Files are named after the numbers of their range; what else a simulator owes is in crpipe.contract."""

import pytest

from crpipe.core.errors import ConfigError, SourceError
from crpipe.core.ranges import Range
from crpipe.workloads.direction.simulator.files import NeutrinoTelescope
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.xec.simulator.files import XenonDetector
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

RANGE = Range(42_000, 42_999)
SIMULATORS = [
    (AirShowers(AirShowersOptions(files_per_range=3)), "bundles-00{}.parquet"),
    (NeutrinoTelescope(NeutrinoTelescopeOptions(files_per_range=3)), "batch_{}.parquet"),
    (XenonDetector(XenonDetectorOptions(files_per_range=3)), "gammas_0{}.root"),
]


@pytest.mark.parametrize(("simulator", "pattern"), SIMULATORS)
def test_files_of_a_range_are_numbered_and_no_other_file_is_written(simulator, pattern, tmp_path):
    assert simulator.files(RANGE) == [pattern.format(number) for number in (42_000, 42_001, 42_002)]
    with pytest.raises(ConfigError, match=r"files_per_range: 3 .* 0000000-0000001"):
        simulator.files(Range(0, 1))
    other = pattern.format(42_003)
    with pytest.raises(SourceError, match=other):
        simulator.write(RANGE, other, 1, tmp_path / "x")
    assert not (tmp_path / "x").exists()
