"""A range in a pack becomes the same shards, outliers, tables and ledger as beside the campaign."""

import json
import platform
from dataclasses import replace

import pytest

from checked import FIRST, Checked
from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import PackError, SourceError
from crpipe.packs.ranges import pack_range, split_pack
from crpipe.packs.results import unpack
from damage import flip
from told import Told


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """What begins a campaign with a side table, the same one for all."""
    notes = tmp_path_factory.mktemp("tables") / "notes.txt"
    notes.write_text("a table that no reader needs\n")

    def begun(folder, *keys):
        campaign = Checked(folder / "campaign", (f"source.tables={{notes: 'file://{notes}'}}", *keys))
        campaign.crpipe("tables")
        return campaign

    return begun


@pytest.fixture(scope="module")
def beside(begin, tmp_path_factory):
    """A range that was split beside its campaign."""
    campaign = begin(tmp_path_factory.mktemp("beside"))
    campaign.split(FIRST)
    return campaign


def open_of(campaign):
    return Campaign.open(campaign.config)


def made_of(campaign):
    """Read what a split leaves, without the table's place and what only one way leaves."""
    found = campaign.contents()
    passing = ("staged", "lease", "tables.json", ".claim")
    return {name: data for name, data in found.items() if not any(each in name for each in passing)}


def test_a_range_in_a_pack_becomes_the_same_files(begin, beside, tmp_path):
    campaign, node = begin(tmp_path), tmp_path / "node"
    node.mkdir()
    pack_range(open_of(campaign), FIRST, node / "in.tar", Told())
    split_pack(node / "in.tar", node / "out.tar", Told())
    assert sorted(path.name for path in node.iterdir()) == ["in.tar", "out.tar"]
    for _ in range(2):
        unpack(open_of(campaign), node / "out.tar", Told())
        assert made_of(campaign) == made_of(beside)
    assert not campaign.check(FIRST).errors
    verbs = [(row["verb"], row["what"]) for row in map(json.loads, journal(campaign)) if row.get("verb")]
    ends = [verb for verb, what in verbs if what == "finished"]
    assert ends == ["tables", "list", "stage", "split"]


def journal(campaign):
    return campaign.paths.data_journal().read_text().splitlines()


def test_a_damaged_or_foreign_result_changes_nothing(begin, beside, tmp_path, monkeypatch):
    campaign, out = begin(tmp_path), tmp_path / "out.tar"
    pack_range(open_of(campaign), FIRST, tmp_path / "in.tar", Told())
    split_pack(tmp_path / "in.tar", out, Told())
    before, whole = made_of(campaign), out.read_bytes()
    flip(out)
    with pytest.raises(PackError, match="this pack is damaged .*; bring it from its node again"):
        unpack(open_of(campaign), out, Told())
    mark = tmp_path / "spent"
    with pytest.raises(PackError, match="damaged"):
        unpack(open_of(campaign), out, Told(), remove=True, spent=mark)
    assert not out.exists()
    assert not mark.exists()  # another copy may be whole
    out.write_bytes(whole)
    other = replace(campaign, keys=(*campaign.keys, "split.outlier_above=30"))
    with pytest.raises(PackError, match=f"of key .*, and range {FIRST} has the key .*crpipe pack {FIRST}"):
        unpack(open_of(other), out, Told(), remove=True, spent=mark)
    assert mark.exists()
    assert not out.exists()
    out.write_bytes(whole)
    monkeypatch.setattr("crpipe.packs.archive.__version__", "9.9.9")
    with pytest.raises(PackError, match=r"this is crpipe 9\.9\.9"):
        unpack(open_of(campaign), out, Told(), remove=True)
    assert out.exists()  # the version that made it takes it
    monkeypatch.undo()
    assert made_of(campaign) == before
    unpack(open_of(campaign), out, Told())
    assert made_of(campaign) == made_of(beside)


def test_a_range_that_fails_comes_back_as_the_error_that_it_was(begin, tmp_path):
    campaign = begin(tmp_path, "source.min_files=5")
    pack_range(open_of(campaign), FIRST, tmp_path / "in.tar", Told())
    with pytest.raises(SourceError) as there:
        split_pack(tmp_path / "in.tar", tmp_path / "out.tar", Told())
    with pytest.raises(SourceError) as here:
        unpack(open_of(campaign), tmp_path / "out.tar", Told())
    assert type(here.value) is type(there.value)
    assert str(here.value) == f"{there.value} (on {platform.node()})"
    with pytest.raises(SourceError):
        unpack(open_of(campaign), tmp_path / "out.tar", Told(), remove=True, spent=tmp_path / "spent")
    assert (tmp_path / "spent").exists()
    assert not (tmp_path / "out.tar").exists()
    flip(tmp_path / "in.tar")
    with pytest.raises(PackError, match="send it again"):
        split_pack(tmp_path / "in.tar", tmp_path / "out.tar", Told())


def test_ctrl_c_is_no_failure_of_a_range(begin, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    pack_range(open_of(begin(tmp_path)), FIRST, tmp_path / "in.tar", Told())
    monkeypatch.setattr("crpipe.packs.ranges.stage_range", stop)
    with pytest.raises(KeyboardInterrupt):
        split_pack(tmp_path / "in.tar", tmp_path / "out.tar", Told())
    assert not (tmp_path / "out.tar").exists()
