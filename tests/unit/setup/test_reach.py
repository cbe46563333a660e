import pytest

from crpipe.config.loading import validate
from crpipe.core.errors import AccessError
from crpipe.core.ranges import Range
from crpipe.setup import doctor
from crpipe.setup.doctor import source_found, token_found
from crpipe.source.pelican.login import Access
from tokens_needed import needing

FIRST = Range(0, 3)
REMOTE = "pelican://host/data/{range}/*.x"


def found_in(uri, files="", first=FIRST, **source):
    ranges = {"first": first.first, "last": first.last, "step": first.last - first.first + 1}
    return source_found(
        validate({"source": {"uri": str(uri), "files": str(files), **source}, "ranges": ranges})
    )


def test_a_simulator_is_named():
    found = found_in("synthetic://", simulator="simulators:Tiny")
    assert (found.verdict, found.text) == ("ok", "synthetic://: Tiny makes the files")


def test_a_local_folder_is_listed(tmp_path):
    folder = tmp_path / str(FIRST)
    folder.mkdir()
    (folder / "a.x").write_text("abc")
    found = found_in(f"{tmp_path}/{{range}}/*.x")
    assert (found.verdict, found.text) == ("ok", f"1 file, 3 B (range {FIRST})")
    one = Range(0, 0)
    assert found_in(f"{folder}/*.x", first=one).text == f"1 file, 3 B (range {one})"
    assert "holds 1 files" in found_in(f"{folder}/*.x").text


def test_of_a_wrong_folder_is_said_what_lies_there(tmp_path):
    (tmp_path / str(FIRST)).mkdir()
    (tmp_path / str(FIRST) / "a.x").touch()
    found = found_in(f"{tmp_path}/{{range}}/*.y")
    assert found.verdict == "fail"
    assert f"write source.uri: {tmp_path}/{{range}}/*.x" in found.text
    assert "crpipe doctor" in found.fix


def test_a_first_range_that_is_not_there(tmp_path):
    (tmp_path / "0000004-0000007").mkdir()
    (tmp_path / "0000004-0000007" / "a.x").touch()
    said = found_in(f"{tmp_path}/{{range}}/*.x").text
    assert f"{tmp_path} holds 0000004-0000007; set ranges.first, ranges.last and ranges.step" in said


def test_the_files_of_a_list_are_looked_up(tmp_path):
    (tmp_path / "files.txt").write_text("a.x\nb.x\n")
    two = Range(0, 1)
    assert found_in("", tmp_path / "files.txt", two).verdict == "fail"
    assert found_in("", tmp_path / "nowhere.txt", two).verdict == "fail"
    for name in ("a.x", "b.x"):
        (tmp_path / name).write_text("abc")
    found = found_in("", tmp_path / "files.txt", two)
    assert (found.verdict, found.text) == ("ok", f"2 files, 6 B (range {two})")


def test_a_source_without_a_federation_needs_no_token():
    assert token_found(needing("/data/*.x"), ("/data/*.x", "")).verdict == "ok"


@pytest.mark.parametrize(
    ("access", "verdict", "text", "fix"),
    [
        (Access("pelican://host: open to everyone", ""), "ok", "pelican://host: open to everyone", ""),
        (Access("ends        tomorrow", ""), "ok", "covers the campaign; ends tomorrow", ""),
        (Access("needs x", "no token found"), "fail", "no token found", "crpipe token --login"),
        (Access("", "out of reach", answered=False), "warn", "not compared: out of reach", "crpipe doctor"),
    ],
)
def test_the_token_is_compared_with_what_the_source_asks_for(monkeypatch, access, verdict, text, fix):
    monkeypatch.setattr(doctor, "check_reading", lambda *_: access)
    found = token_found(needing(REMOTE), (REMOTE,))
    assert (found.verdict, found.text) == (verdict, text)
    assert fix in found.fix


def test_a_token_that_cannot_be_read(monkeypatch):
    def refused(*_):
        raise AccessError("bt_u0: holds an empty token; renew it")

    monkeypatch.setattr(doctor, "check_reading", refused)
    found = token_found(needing(REMOTE), (REMOTE,))
    assert (found.verdict, found.fix) == ("fail", "crpipe token --login")
