import pytest


@pytest.fixture
def campaign(sound, tmp_path):
    """A copy of the finished campaign."""
    return sound.copy(tmp_path / "campaign")
