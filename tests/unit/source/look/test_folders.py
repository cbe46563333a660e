"""What a folder holds, also one that cannot be read."""

from pathlib import Path

import pytest

from crpipe.source.look import folders
from crpipe.source.look.folders import is_folder, names_in, usual_pattern


@pytest.fixture
def data(tmp_path):
    for name in ("a.h5", "b.h5", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "d.root").mkdir()
    return tmp_path


def test_names_and_the_usual_ending_of_the_files(data):
    assert sorted(names_in(data)) == ["a.h5", "b.h5", "c.txt", "d.root"]
    assert len(names_in(data, most=2)) == 2
    assert usual_pattern(data) == "*.h5"
    assert usual_pattern(data / "d.root") == "*"


def test_what_cannot_be_read_is_no_error(data, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders.os, "scandir", refused)
    assert names_in(data) is None
    assert usual_pattern(data) == "*"
    monkeypatch.setattr(Path, "is_dir", refused)
    assert not is_folder(data)
