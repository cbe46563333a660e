import pytest

from checked import FIRST, finished


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """A finished campaign with an evaluation."""
    campaign = finished(tmp_path_factory.mktemp("sound"))
    campaign.crpipe("evaluate", FIRST)
    return campaign


@pytest.fixture
def campaign(sound, tmp_path):
    """A copy of the finished campaign."""
    return sound.copy(tmp_path / "campaign")
