"""A run is brought back as it was, verified, or nothing is."""

import json
import shutil
from contextlib import nullcontext

import pytest

from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, ListingError, TransferError
from crpipe.core.text import NullProgress
from crpipe.source import restore
from crpipe.source.restore import restore_run
from crpipe.source.sync import sync_run
from opened import opened
from told import Told

RECEIPT = json.dumps({"range": "r", "checkpoint": "checkpoint-k.pt"})
FILES = {
    "runs/deep/ranges/r.json": RECEIPT,
    "runs/deep/campaign.json": "{}",
    "runs/deep/journal.jsonl": "{}\n",
    "runs/deep/store/r/checkpoint-k.pt": "weights",
    "runs/deep/store/s/snapshot-k-0000000007-0.pt": "half way",
    "runs/deep/store/s/metrics.jsonl": "{}\n",
    "runs/deep/tensorboard/000000.r/events.1": "losses",
    "results/campaign.json": "{}",
    "results/manifests/r.parquet": "PAR1 a list of files PAR1",
}


def config_in(folder, second):
    places = {"runs": str(folder / "runs"), "results": str(folder / "results"), "sync": {"to": str(second)}}
    return validate({"run": "deep", **places, "source": {"attempts": 1}})


@pytest.fixture
def copied(tmp_path):
    """A run that was synced, and the campaign elsewhere that it is restored into."""
    for number, (name, text) in enumerate(FILES.items()):
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        stat = path.stat()
        restore.os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - number * 10**12))
    assert sync_run(opened(config_in(tmp_path / "here", tmp_path / "second")), NullProgress()) == len(FILES)
    return opened(config_in(tmp_path / "there", tmp_path / "second"))


def contents(folder):
    return {
        str(path.relative_to(folder)): (path.read_text(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and ".sync" not in str(path)
    }


def test_everything_comes_back_with_its_times(copied, tmp_path):
    assert restore_run(copied, NullProgress()) == len(FILES)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    told = Told()
    assert restore_run(copied, told) == 0
    assert told.lines[-1].endswith(
        f"0 files restored from {tmp_path / 'second'}, {len(FILES)} were here already"
    )


@pytest.mark.parametrize("number", range(0, len(FILES), 3))
def test_killed_at_any_file_the_next_call_goes_on(copied, tmp_path, monkeypatch, number):
    left, publish = [number], restore.publish

    def dies(*paths):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        publish(*paths)

    monkeypatch.setattr(restore, "publish", dies)
    if number < 7:
        with pytest.raises(KeyboardInterrupt):
            restore_run(copied, NullProgress())
        assert not (copied.paths.run_dir() / "ranges" / "r.json").exists()
    monkeypatch.undo()
    restore_run(copied, NullProgress())
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_file_that_is_here_and_another_is_never_replaced(copied):
    receipt = copied.paths.run_dir() / "ranges" / "r.json"
    receipt.parent.mkdir(parents=True)
    receipt.write_text("another")
    with pytest.raises(ConfigError, match="here, and not as in .* no file was replaced"):
        restore_run(copied, NullProgress())
    assert receipt.read_text() == "another"
    assert not (copied.paths.run_dir() / "campaign.json").exists()


@pytest.mark.parametrize("content", ["weighty", "other size", None])
def test_a_damaged_or_missing_copy_is_refused(copied, content):
    copy = copied.paths.run_dir().parents[2] / "second/deep/store/r/checkpoint-k.pt"
    copy.write_text(content) if content else copy.unlink()
    with pytest.raises(TransferError, match=r"checkpoint-k\.pt.*crpipe sync --verify"):
        restore_run(copied, NullProgress())
    assert not (copied.paths.run_dir() / "ranges" / "r.json").exists()


def test_what_grew_after_the_index_is_left_out(copied):
    second = copied.paths.run_dir().parents[2] / "second" / "deep"
    (second / "journal.jsonl").write_text("grown longer")
    (second / "snapshot-1.pt").write_text("cut")
    told = Told()
    restore_run(copied, told)
    assert not (copied.paths.run_dir() / "journal.jsonl").exists()
    assert not list(copied.paths.run_dir().glob("store/s/snapshot-*"))
    assert (copied.paths.run_dir() / "store/s/metrics.jsonl").exists()
    assert (copied.paths.run_dir() / "tensorboard/000000.r/events.1").exists()
    assert sum("is left out" in line for line in told.lines) == 2


def test_where_nothing_was_synced_nothing_is_restored(copied, tmp_path):
    with pytest.raises(ListingError, match="sync.to"):
        restore_run(opened(config_in(tmp_path / "there", tmp_path / "elsewhere")), NullProgress())


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "store/../../x", ".bashrc", "store/.x"])
@pytest.mark.parametrize("side", ["name", "at"])
def test_an_index_that_leads_elsewhere_is_refused(copied, tmp_path, name, side):
    index = tmp_path / "second" / "deep" / "index.json"
    tree = json.loads(index.read_text())
    row = tree["files"]["campaign.json"]
    if side == "name":
        tree["files"][name] = row
    else:
        row["at"] = name
    index.write_text(json.dumps(tree))
    with pytest.raises(TransferError, match="not an index that crpipe wrote; nothing was restored"):
        restore_run(copied, NullProgress())


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": {}}}', '{"files": {"a": 3}}', "{"])
def test_a_damaged_index_is_named(copied, tmp_path, text):
    index = tmp_path / "second" / "deep" / "index.json"
    index.write_text(text)
    shutil.rmtree(copied.paths.run_dir(), ignore_errors=True)
    with pytest.raises(TransferError, match=r"index\.json: damaged|offers"):
        restore_run(copied, NullProgress())


def test_a_copy_that_was_damaged_is_fetched_again_after_it_was_sent_again(copied, tmp_path):
    place = tmp_path / "second/deep/store/r/checkpoint-k.pt"
    place.write_text("wreight")  # of the same size
    with pytest.raises(TransferError, match="another sha256"):
        restore_run(copied, NullProgress())
    place.write_text("weights")
    restore_run(copied, NullProgress())
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize(("text", "same"), [(RECEIPT, True), ("another", False)])
def test_a_file_that_is_written_here_while_the_copies_come_stays(copied, monkeypatch, text, same):
    receipt, fetch = copied.paths.run_dir() / "ranges" / "r.json", restore._fetch

    def slow(*arguments):
        fetch(*arguments)
        receipt.parent.mkdir(parents=True)
        receipt.write_text(text)

    monkeypatch.setattr(restore, "_fetch", slow)
    with nullcontext() if same else pytest.raises(ConfigError, match="here, and not as in"):
        restore_run(copied, NullProgress())
    assert receipt.read_text() == text
