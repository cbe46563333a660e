import pytest

from crpipe.workloads.xec.sensors import sensor_map
from xenon_toy import make_gammas, make_hidden


@pytest.fixture(scope="session")
def gammas():
    return make_gammas(300)


@pytest.fixture(scope="session")
def places():
    return sensor_map()


@pytest.fixture(scope="session")
def hidden():
    return make_hidden(100)
