import shutil

import pytest

from checked import FIRST, SECOND, Checked


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """A finished campaign of two ranges with a side table, best checkpoints and evaluations."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "notes.txt").write_text("a table that no reader needs\n")
    campaign = Checked(folder / "campaign", (f"source.tables={{notes: 'file://{folder}/notes.txt'}}",))
    campaign.crpipe("tables")
    campaign.split(FIRST, SECOND)
    campaign.crpipe("consolidate")
    for link in (FIRST, SECOND, "outliers"):
        campaign.crpipe("train", link)
    campaign.crpipe("evaluate", FIRST)
    # As the workflow does: what only the next step needs is gone.
    shutil.rmtree(campaign.paths.results / "staged")
    return campaign


@pytest.fixture
def campaign(sound, tmp_path):
    """A copy of the finished campaign."""
    return sound.copy(tmp_path / "campaign")
