"""Sums of a ledger are read without its files, and a damaged ledger is never taken for a good one."""

import errno
import json
from pathlib import Path

import pytest

from campaign_files import CampaignFiles, write_ledger
from crpipe.campaign.ledger import LedgerFiles, LedgerSums, contents_of, read_contents
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json


@pytest.fixture
def path(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    return files.paths.ledger(files.split(0, quarantined=2, rejected=3))


def without_files(path):
    return {name: value for name, value in read_json(path).items() if name not in {"files", "contents"}}


def test_the_file_is_one_json_object_with_a_line_for_each_file(path):
    ledger = json.loads(path.read_text())
    lines = path.read_text().splitlines()
    named = [line for line in lines if '"path"' in line]
    assert [json.loads(line.rstrip(","))["path"] for line in named] == [
        row["path"] for row in ledger["files"]
    ]


def test_the_sums_are_all_but_the_files(path):
    assert LedgerSums.read(path).as_json() == without_files(path)
    assert "files" in read_json(path)


@pytest.mark.parametrize("count", [0, 1])
def test_a_ledger_of_few_files_is_read_back(path, count):
    ledger = read_json(path)
    ledger["files"] = ledger["files"][:count]
    write_ledger(path, ledger)
    assert read_json(path) == ledger | {"contents": contents_of(LedgerFiles.from_json(ledger).files)}
    assert LedgerSums.read(path).as_json() == without_files(path)


def test_equal_ledgers_are_equal_bytes(path):
    before, ledger = path.read_bytes(), read_json(path)
    write_ledger(path, dict(reversed(ledger.items())))
    assert path.read_bytes() == before


def test_only_the_sums_are_parsed(path):
    lines = path.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"path"' in line)
    lines[first] = lines[first].replace('"path"', '"PATH"')
    path.write_text("".join(lines))
    assert LedgerSums.read(path).quarantined == 2
    with pytest.raises(DataError, match="path is missing"):
        read_json(path)


def test_a_text_that_looks_like_the_files_does_not_end_the_sums(path):
    ledger = read_json(path)
    ledger["rejected"][0]["reason"] = '\n "files": [\n'
    write_ledger(path, ledger)
    assert LedgerSums.read(path).as_json() == without_files(path)


def test_a_ledger_in_another_order_is_read_whole(path):
    ledger = read_json(path)
    write_json(path, ledger)
    assert LedgerSums.read(path).as_json() == without_files(path)


def test_no_ledger_is_none_or_an_error(tmp_path):
    assert LedgerSums.read_if_any(tmp_path / "ledgers/0.json") is None
    with pytest.raises(DataError, match="missing; run `crpipe split 0` first"):
        LedgerSums.read(tmp_path / "ledgers/0.json")


def test_a_ledger_that_was_cut_anywhere_is_refused(path):
    whole = path.read_bytes()
    for size in (*range(0, len(whole) - 1, 7), len(whole) - 2):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"damaged .*; delete it"):
            LedgerSums.read(path)


def test_a_wrong_sum_is_refused(path):
    path.write_text(path.read_text().replace('"quarantined": 2', '"quarantined": -2'))
    with pytest.raises(DataError, match="quarantined is -2"):
        LedgerSums.read(path)


def test_a_ledger_that_was_not_found_once_is_not_taken_for_none(path, monkeypatch):
    wanted, whole, opened = read_contents(path), Path.open, []

    def late(self, *words, **named):
        opened.append(self)
        if len(opened) == 1:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        return whole(self, *words, **named)

    monkeypatch.setattr(Path, "open", late)
    assert read_contents(path) == wanted != b""
