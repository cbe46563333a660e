from dataclasses import replace

import pytest

from crpipe.campaign.raw_files import Entry
from crpipe.core.errors import SourceError
from crpipe.source.look import one_file
from crpipe.source.look.one_file import bring, smallest, typical
from crpipe.source.uris import SourceOptions


def test_the_smallest_or_the_middle_file_that_is_not_empty_is_chosen():
    sizes = {"a": 9, "b": 0, "c": 3, "d": 7}
    entries = [Entry(name, name, size, None) for name, size in sizes.items()]
    assert (smallest(entries).path, typical(entries).path) == ("c", "d")
    assert smallest(entries[1:2]) is typical(entries[1:2]) is None


def test_one_file_is_copied_within_its_size(configure, tmp_path, monkeypatch):
    (tmp_path / "raw").write_bytes(b"12345")
    options = SourceOptions.of(configure(attempts=1))
    entry = Entry("raw", str(tmp_path / "raw"), 5, None)
    bring(entry, tmp_path / "copy", options)
    assert (tmp_path / "copy").read_bytes() == b"12345"
    with pytest.raises(SourceError, match="it changed"):
        bring(replace(entry, size=4), tmp_path / "copy", options)
    monkeypatch.setattr(one_file, "MOST_BYTES", 4)
    with pytest.raises(SourceError, match="at most are read"):
        bring(entry, tmp_path / "copy", options)
