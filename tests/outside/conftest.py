import pytest

from outside.lab import HITS, TILES, Lab


@pytest.fixture(scope="session")
def hits(tmp_path_factory):
    """The finished campaign of hitlab; copy it before changing anything."""
    lab = Lab.begin(tmp_path_factory.mktemp("hits") / "campaign", HITS)
    lab.snakemake("all")
    return lab


@pytest.fixture(scope="session")
def tiles(tmp_path_factory):
    """The finished campaign of tilelab; copy it before changing anything."""
    lab = Lab.begin(tmp_path_factory.mktemp("tiles") / "campaign", TILES)
    lab.snakemake("all")
    return lab


@pytest.fixture(params=["hits", "tiles"])
def finished(request):
    """Each of the two finished campaigns."""
    return request.getfixturevalue(request.param)
