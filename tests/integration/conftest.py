import pytest

from runs import Campaign


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A campaign that ran to its end without any disturbance; copy it before changing anything."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("finished") / "campaign")
    campaign.snakemake()
    return campaign


@pytest.fixture(scope="session")
def split(tmp_path_factory):
    """A campaign whose ranges are split, and on which nothing was trained."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("split") / "campaign")
    campaign.snakemake("outliers_consolidated")
    return campaign


@pytest.fixture
def begun(tmp_path):
    """A campaign in which nothing was done yet."""
    return Campaign.begin(tmp_path / "campaign")
