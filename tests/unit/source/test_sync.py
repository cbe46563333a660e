import json
import os
import shutil
import signal
import threading

import pytest

from crpipe.cli.app import main
from crpipe.config.loading import validate
from crpipe.config.sections import SyncSection
from crpipe.core.errors import ConfigError, DiskError, LeaseError, TransferError
from crpipe.core.files import sha256
from crpipe.core.lease import lease
from crpipe.core.text import NullProgress
from crpipe.source import sync as module
from crpipe.source.local import Directory
from crpipe.source.restore import restore_run
from crpipe.source.retries import TemporaryFailure
from crpipe.source.sync import SyncRules, sync_every, sync_run, try_place
from opened import opened
from told import Told


@pytest.fixture
def run(tmp_path):
    """A run with event files, a checkpoint, and things that stay where they are."""
    config = validate(
        {
            "run": "deep",
            "runs": str(tmp_path / "runs"),
            "results": str(tmp_path / "results"),
            "sync": {"to": str(tmp_path / "second")},
            "source": {"attempts": 1},
        }
    )
    root = config.paths().run_dir()
    for name in (
        "tensorboard/a/events.1",
        "store/r/checkpoint-k.pt",
        "store/r/snapshot-k-7-0.pt",
        "store/r/lease",
        "tensorboard/a/.events.part",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return config


def arrived(second):
    files = {str(path.relative_to(second / "deep")) for path in second.rglob("*") if path.is_file()}
    (mark,) = [name for name in files if name.startswith("copy-")]
    return files - {mark}


def test_all_that_another_machine_needs_arrives(run, tmp_path):
    assert sync_run(opened(run), NullProgress()) == 3
    second = tmp_path / "second"
    files = {"tensorboard/a/events.1", "store/r/checkpoint-k.pt", "snapshot-1.pt"}
    assert arrived(second) == {*files, "index.json"}
    rows = json.loads((second / "deep" / "index.json").read_text())["files"]
    assert {row["at"] for row in rows.values()} == files
    assert (tmp_path / "second/deep/tensorboard/a/events.1").read_text() == "tensorboard/a/events.1"


def test_only_what_changed_is_sent_again(run):
    sync_run(opened(run), NullProgress())
    told = Told()
    sync_run(opened(run), told)
    assert told.lines[-1].endswith(": 0 files sent, 0 failed")
    (run.paths().tensorboard() / "a" / "events.1").write_text("grown longer than it was")
    sync_run(opened(run), told)
    assert told.lines[-1].endswith(": 1 file sent, 0 failed")
    assert sync_run(opened(run), told, SyncRules(new=True)) == 3


def test_another_place_gets_everything(run, tmp_path):
    sync_run(opened(run), NullProgress())
    moved = run.model_copy(update={"sync": run.sync.model_copy(update={"to": str(tmp_path / "third")})})
    told = Told()
    sync_run(opened(moved), told)
    assert told.lines[-1].endswith(": 3 files sent, 0 failed")


def test_a_failure_is_an_error_of_the_disk_and_is_made_up_for(run, tmp_path):
    (tmp_path / "second").write_text("a file where a directory is needed")
    told = Told()
    with pytest.raises(DiskError, match="a file is where a directory is needed"):
        sync_run(opened(run), told)
    (tmp_path / "second").unlink()
    (tmp_path / "second" / "deep").mkdir(parents=True)
    (tmp_path / "second" / "deep" / "store").write_text("a file where a directory is needed")
    with pytest.raises(DiskError, match=r"1 file not sent, the first of them store/r/checkpoint-k.pt"):
        sync_run(opened(run), told)
    assert any(line.startswith("warning: store/r/checkpoint-k.pt was not synced") for line in told.lines)
    (tmp_path / "second" / "deep" / "store").unlink()
    assert sync_run(opened(run), told) == 1


@pytest.mark.parametrize("verb", [sync_run, lambda *words: sync_every(words[0], 1.0, bool, *words[1:])])
def test_an_empty_place_is_an_error_at_once(run, verb):
    nowhere = run.model_copy(update={"sync": SyncSection()})
    with pytest.raises(ConfigError, match=r"sync\.to: empty"):
        verb(opened(nowhere), NullProgress(), SyncRules())


def test_the_newest_snapshot_of_an_unfinished_link_never_replaces_the_one_before(run, tmp_path):
    store, second = run.paths().store("r"), tmp_path / "second" / "deep"
    sync_run(opened(run), NullProgress())
    (store / "snapshot-k-8-0.pt").write_text("newer")
    sync_run(opened(run), NullProgress())
    assert [(second / f"snapshot-{n}.pt").read_text() for n in (1, 2)] == [
        "store/r/snapshot-k-7-0.pt",
        "newer",
    ]
    sync_run(opened(run), NullProgress())
    (store / "snapshot-k-9-0.pt").write_text("newest")
    sync_run(opened(run), NullProgress())
    assert [(second / f"snapshot-{n}.pt").read_text() for n in (1, 2)] == ["newest", "newer"]
    receipt = run.paths().receipt("r")
    receipt.parent.mkdir()
    receipt.write_text(json.dumps({"range": "r", "checkpoint": "checkpoint-k.pt"}))
    sync_run(opened(run), NullProgress())
    assert "snapshot" not in (second / "index.json").read_text()


def test_the_index_names_no_receipt_without_its_checkpoint(run, tmp_path):
    receipt = run.paths().receipt("r")
    receipt.parent.mkdir()
    receipt.write_text(json.dumps({"range": "r", "checkpoint": "checkpoint-k.pt"}))
    blocked = tmp_path / "second" / "deep" / "store" / "r"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where a directory is needed")
    with pytest.raises(DiskError):
        sync_run(opened(run), NullProgress())
    index = tmp_path / "second" / "deep" / "index.json"
    assert "ranges/r.json" not in json.loads(index.read_text())["files"]
    blocked.unlink()
    receipt.with_name("s.json").write_text("damaged")
    assert sync_run(opened(run), NullProgress()) == 3
    assert {name for name in json.loads(index.read_text())["files"] if "ranges" in name} == {"ranges/r.json"}


def test_one_sync_at_a_time(run):
    campaign = opened(run)
    with (
        lease(campaign.paths.run_dir() / ".sync", wait_s=0.0, say=Told().message),
        pytest.raises(LeaseError, match="already being worked on by process"),
    ):
        sync_run(campaign, NullProgress())
    assert sync_run(campaign, NullProgress()) == 3


def test_before_a_run_begins_there_is_nothing_to_send(run, tmp_path):
    told = Told()
    assert sync_run(opened(run.model_copy(update={"runs": tmp_path / "none"})), told) == 0
    assert told.lines == [f"{tmp_path / 'none' / 'deep'}: nothing to send yet"]


def indexed(second):
    """Read each file of the copy through its index, as a restore does; raise where one is another."""
    rows = json.loads((second / "deep" / "index.json").read_text())["files"]
    found = {name: second / "deep" / row["at"] for name, row in rows.items()}
    assert {name: sha256(path) for name, path in found.items()} == {
        name: row["sha256"] for name, row in rows.items()
    }
    return {name: path.read_text() for name, path in found.items()}


def test_the_snapshot_that_the_index_names_stays_while_no_new_index_arrives(run, tmp_path, monkeypatch):
    sync_run(opened(run), NullProgress())
    place = Directory.send

    async def no_index(self, file, name):
        if name.endswith("index.json"):
            raise DiskError("no space")
        await place(self, file, name)

    monkeypatch.setattr(Directory, "send", no_index)
    for number in (8, 9):
        (run.paths().store("r") / f"snapshot-k-{number}-0.pt").write_text(f"newer {number}")
        with pytest.raises(DiskError, match="1 file not sent, the first of them index"):
            sync_run(opened(run), NullProgress())
        assert indexed(tmp_path / "second")["store/r/snapshot-k-7-0.pt"] == "store/r/snapshot-k-7-0.pt"
    monkeypatch.undo()
    sync_run(opened(run), NullProgress())
    assert indexed(tmp_path / "second")["store/r/snapshot-k-9-0.pt"] == "newer 9"


def test_a_snapshot_that_goes_while_it_is_sent_leaves_the_one_before(run, tmp_path, monkeypatch):
    sync_run(opened(run), NullProgress())
    newer, stamp = run.paths().store("r") / "snapshot-k-8-0.pt", module._stamp
    (newer.parent / "snapshot-k-7-0.pt").unlink()

    def gone(path):
        if path == newer:
            newer.unlink(missing_ok=True)
        return stamp(path)

    for _ in range(2):
        newer.write_text("newer")
        monkeypatch.setattr(module, "_stamp", gone)
        assert sync_run(opened(run), NullProgress()) == 0
        assert indexed(tmp_path / "second")["store/r/snapshot-k-7-0.pt"] == "store/r/snapshot-k-7-0.pt"
    monkeypatch.undo()
    newer.write_text("newer")
    assert sync_run(opened(run), NullProgress()) == 1
    assert [name for name in indexed(tmp_path / "second") if "snapshot" in name] == [
        "store/r/snapshot-k-8-0.pt"
    ]


def test_a_file_that_changes_while_it_is_sent_is_not_in_the_index(run, tmp_path, monkeypatch):
    events, send = run.paths().tensorboard() / "a" / "events.1", Directory.send

    async def grows(self, file, name):
        await send(self, file, name)
        if file == events:
            events.write_text(f"{events.read_text()} more")

    monkeypatch.setattr(Directory, "send", grows)
    with pytest.raises(TransferError, match="1 file not sent.*it changed while it was sent"):
        sync_run(opened(run), NullProgress())
    assert "tensorboard/a/events.1" not in indexed(tmp_path / "second")
    monkeypatch.undo()
    assert sync_run(opened(run), NullProgress()) == 1


def test_an_index_of_which_a_part_came_first_is_read_from_its_begin_again(run, monkeypatch):
    twice = run.model_copy(update={"source": run.source.model_copy(update={"attempts": 2})})
    sync_run(opened(twice), NullProgress())
    left, read = [1], Directory.read

    async def breaks(self, name, write):
        if left and left.pop():
            await read(self, name, lambda piece: write(piece[:9]))
            raise TemporaryFailure("cut")
        return await read(self, name, write)

    monkeypatch.setattr(Directory, "read", breaks)
    assert sync_run(opened(twice), NullProgress()) == 0


def damage(path):
    path.write_text("x" * len(path.read_text()))


@pytest.mark.parametrize(
    "name", ["store/r/checkpoint-k.pt", "snapshot-1.pt", "tensorboard/a/events.1", "index.json"]
)
@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_text("cut"), damage])
def test_what_the_copy_lost_or_damaged_is_sent_again(run, tmp_path, name, harm):
    sync_run(opened(run), NullProgress())
    whole, path = indexed(tmp_path / "second"), tmp_path / "second" / "deep" / name
    harm(path)
    told = Told()
    sync_run(opened(run), told, SyncRules(verify=harm is damage))
    assert indexed(tmp_path / "second") == whole
    assert any(line.startswith(f"warning: deep/{name}: ") and "sent again" in line for line in told.lines)
    told = Told()
    assert sync_run(opened(run), told, SyncRules(verify=True)) == 0
    assert not any("warning" in line for line in told.lines)
    assert any(line.endswith("3 of 3 files have their sha256") for line in told.lines)


@pytest.mark.parametrize("other", ["empty", "none", "another copy"])
def test_a_place_that_is_not_the_one_of_the_last_sync_is_refused(run, tmp_path, other):
    sync_run(opened(run), NullProgress())
    second, away = tmp_path / "second", tmp_path / "away"
    second.rename(away)  # as an unmounted disk does
    if other != "none":
        second.mkdir()
    if other == "another copy":
        (second / "deep").mkdir()
        (second / "deep" / "copy-0123456789abcdef.json").write_text("{}")
    before = sorted(second.rglob("*"))
    (run.paths().store("r") / "checkpoint-l.pt").write_text("newer")
    with pytest.raises(DiskError, match="not the place of the last sync.*mount it.*crpipe sync --new"):
        sync_run(opened(run), NullProgress())
    assert sorted(second.rglob("*")) == before
    if other == "none":
        away.rename(second)
        assert sync_run(opened(run), NullProgress()) == 1
    else:
        assert sync_run(opened(run), NullProgress(), SyncRules(new=True)) == 4
        assert sync_run(opened(run), NullProgress()) == 0
    assert len(indexed(second)) == 4


def test_a_disk_that_is_unmounted_during_a_sync_gets_no_index(run, tmp_path, monkeypatch):
    sync_run(opened(run), NullProgress())
    second, send_one = tmp_path / "second", Directory.send

    async def unmounted(self, file, name):
        if second.exists() and "checkpoint-l" in name:
            second.rename(tmp_path / "away")
        await send_one(self, file, name)

    (run.paths().store("r") / "checkpoint-l.pt").write_text("newer")
    monkeypatch.setattr(Directory, "send", unmounted)
    with pytest.raises(DiskError, match="not the place of the last sync"):
        sync_run(opened(run), NullProgress())
    monkeypatch.undo()
    shutil.rmtree(second)
    (tmp_path / "away").rename(second)
    assert sync_run(opened(run), NullProgress()) == 1
    assert len(indexed(second)) == 4


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_copy_of_an_earlier_version_goes_on_and_can_be_restored(run, tmp_path, has_mark):
    sync_run(opened(run), NullProgress())
    memory, copy = run.paths().run_dir() / ".sync.json", tmp_path / "second" / "deep"
    tree = json.loads(memory.read_text())
    if not has_mark:
        (copy / tree.pop("mark")).unlink()
    index = (copy / "index.json").read_text().replace("snapshot-1.pt", "snapshot-3.pt")
    (copy / "index.json").write_text(index)
    (copy / "snapshot-1.pt").rename(copy / "snapshot-3.pt")
    (copy / "store/r/checkpoint-k.pt").unlink()
    memory.write_text(json.dumps(tree | {"files": json.loads(index)["files"], "index": index}))
    assert sync_run(opened(run), NullProgress()) == 1
    assert len(indexed(tmp_path / "second")) == 3
    assert json.loads(memory.read_text())["mark"]
    there = opened(run.model_copy(update={"runs": tmp_path / "there"}))
    assert restore_run(there, NullProgress()) == 3


def test_a_sync_that_fails_has_an_exit_code(run, tmp_path, monkeypatch, capsys):
    config, second = tmp_path / "crpipe.yaml", tmp_path / "second"
    config.write_text(
        json.dumps({"run": "deep", "runs": run.runs, "results": run.results, "sync": {"to": str(second)}})
    )

    def code(*words):
        monkeypatch.setattr("sys.argv", ["crpipe", "--config", str(config), "sync", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code

    assert code("--verify") == 0
    second.rename(tmp_path / "away")
    assert code() == 74
    assert "not the place of the last sync" in capsys.readouterr().err
    assert code("--new") == 0
    (second / "deep" / "tensorboard" / "a" / "events.1").unlink()
    (second / "deep" / "tensorboard" / "a").rmdir()
    (second / "deep" / "tensorboard" / "a").write_text("a file where a directory is needed")
    assert code() == 74
    assert "1 file not sent" in capsys.readouterr().err


@pytest.fixture
def campaign(run):
    """The campaign of a run that has begun, with its journal."""
    run.paths().train_journal().write_text("begun\n")
    return opened(run)


def test_it_goes_on_until_the_finished_run_is_sent(campaign, tmp_path):
    told, rounds = Told(), iter([False, False, True])

    def finished():
        with (campaign.paths.train_journal()).open("a") as journal:
            journal.write("more\n")
        return next(rounds)

    assert sync_every(campaign, 0.001, finished, told, SyncRules())
    assert (tmp_path / "second" / "deep" / "journal.jsonl").read_text() == "begun\n" + 3 * "more\n"
    assert told.lines[-1] == "deep: finished, and sent"


def test_what_fails_is_reported_and_sent_at_the_next_time(campaign, tmp_path):
    second, told, calls = tmp_path / "second", Told(), []
    second.write_text("a file where a directory is needed")

    def finished():
        calls.append(1)
        if len(calls) == 3:
            second.unlink()
        return True

    assert sync_every(campaign, 0.001, finished, told, SyncRules())
    assert len(calls) == 3
    assert any(
        "a file is where a directory is needed" in line and "tried again in" in line for line in told.lines
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quietly(campaign, number):
    told, before = Told(), [signal.SIG_DFL, signal.default_int_handler]
    for each, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
        signal.signal(each, handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    assert not sync_every(campaign, 10.0, lambda: False, told, SyncRules())
    assert told.lines[-1] == "stopped as asked; the same command goes on"
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_signal_that_comes_during_a_sync_ends_it_too(campaign, monkeypatch):
    monkeypatch.setattr(module, "_send_changed", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert not sync_every(campaign, 10.0, lambda: False, Told(), SyncRules())


def test_a_place_is_tried_with_a_file_that_may_be_deleted(run, tmp_path, monkeypatch):
    tried = tmp_path / "second" / "crpipe-write-test.txt"
    assert try_place(run) == str(tried)
    assert "whether crpipe may write here" in tried.read_text()

    async def other(self, name, write):
        write(b"of a cache")
        return True

    monkeypatch.setattr(Directory, "read", other)
    with pytest.raises(TransferError, match="other bytes are read than were written"):
        try_place(run)
