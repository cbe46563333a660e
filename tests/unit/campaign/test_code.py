"""Which code a class is: its distribution, and the bytes of its package's modules."""

import sys

import pytest

from crpipe.campaign.code import Code, CodeEntry, CodeRecord, changes, code_of, used_code


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in PYTHONPATH with a module and a file that is none."""
    folder = tmp_path / "codelab"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "part" / "model.py").write_text("A = 1\n")
    (folder / "notes.txt").write_text("one")
    (tmp_path / "codefile.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    assert "codelab" not in sys.modules  # nothing is imported


def test_a_class_is_known_by_the_bytes_of_the_modules_that_it_imports(package):
    (package / "reading.py").write_text("import numpy\nfrom .part.model import A\n")
    (package / "other.py").write_text("")
    before = code_of("codelab.reading:Reader")
    assert (before.distribution, len(before.sha256)) == ("", 64)
    (package / "other.py").write_text("C = 1\n")
    (package / "notes.txt").write_text("two")
    assert code_of("codelab.reading:Reader") == before
    seen = {before.sha256}
    for change in (
        lambda: (package / "part" / "model.py").write_text("A = 2\n"),
        lambda: (package / "__init__.py").write_text("import codelab.other\n"),
        lambda: (package / "other.py").write_text("C = 2\n"),
        lambda: (package / "part" / "__init__.py").write_text("from ..deep import *\n"),
        lambda: (package / "deep.py").write_text("def cut("),
        lambda: (package / "reading.py").write_text("from codelab import part, other\n"),
    ):
        change()
        seen.add(code_of("codelab.reading:Reader").sha256)
    assert len(seen) == 7


def test_a_module_alone_an_installed_package_crpipe_and_one_that_is_not_here(package):
    assert code_of("codefile:Reader").sha256 != code_of("codelab:Reader").sha256
    assert code_of("yaml:Loader").distribution.startswith("PyYAML ")
    ours = code_of("crpipe.workloads.muons:MuonGan")
    assert ours.distribution.startswith("crpipe ")
    assert ours.sha256 == ""
    assert code_of("nowhere_lab:Reader") is None


def test_a_change_is_named_where_the_package_is_here(package):
    now = code_of("codelab:Reader")
    gone = Code(name="nowhere_lab:Model", distribution="", sha256="a" * 64)
    assert changes({"source.reader": now, "train.workload": gone}) == []
    other = Code(name="codelab:Reader", distribution="codelab 1.0", sha256="b" * 64)
    (line,) = changes({"source.reader": other})
    assert line.startswith("the code of codelab:Reader changed: codelab 1.0, modules bbbbbbbbbbbb before, ")
    assert line.endswith(f"package codelab, modules {now.sha256[:12]} now")


def test_a_link_has_the_code_that_was_recorded_before_it(tmp_path):
    codes = [Code(name="a:B", distribution=str(number), sha256="") for number in range(4)]
    links = ("0000010-0000019", "0000000-0000009.2", "outliers")
    entries = [CodeEntry(since=link, code={"it": code}) for link, code in zip(links, codes, strict=False)]
    CodeRecord.of(entries).write(tmp_path / "code.json")

    def at(link):
        return used_code(tmp_path / "code.json", link).get("it")

    assert at("0000000-0000009") is None
    assert at("0000010-0000019") == codes[0]
    assert at("0000090-0000099") == codes[0]
    assert at("0000010-0000019.2") == codes[1]
    assert at("outliers") == at("") == codes[2]
    assert used_code(tmp_path / "none.json") == {}
