import pytest

from crpipe.config.loading import validate
from crpipe.core.ranges import Range


@pytest.fixture
def name():
    return Range.parse("0000000-0000999")


@pytest.fixture
def tree(tmp_path, name):
    """A source directory with one range of twelve files of different sizes."""
    folder = tmp_path / "data" / str(name)
    folder.mkdir(parents=True)
    for index in range(12):
        (folder / f"part-{index:04d}.bin").write_bytes(bytes([index]) * (1000 * index + 1))
    (folder / "README.txt").write_text("not a data file")
    return tmp_path / "data"


@pytest.fixture
def configure(tmp_path, tree):
    """Make a configuration of the directory source; keywords go to its source section."""

    def make(**source):
        keys = {"uri": f"{tree}/{{range}}/*.bin", "concurrency": 4, **source}
        return validate({"results": str(tmp_path / "results"), "ranges": {"last": 999}, "source": keys})

    return make
