"""A link in a pack trains anywhere, in slices, to the bytes of a link that was trained in one piece."""

import contextlib
import json
import os
import platform
import random
import shutil
import signal
import tarfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.records import read_slices
from crpipe.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DiskError,
    DivergenceError,
    PackError,
    SliceOver,
    TrainError,
)
from crpipe.core.files import sha256
from crpipe.core.journal import Journal
from crpipe.packs import archive, slices
from crpipe.packs.archive import new_record, read_record, write_pack
from crpipe.packs.links import pack_link
from crpipe.packs.results import unpack
from crpipe.packs.slices import SlicedJob, train_pack
from crpipe.train import loop
from damage import edit, flip
from models import train_range
from told import Told
from toy import RANGES, Toy, toy_config, write_shards

FIRST, SECOND, _ = RANGES


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A campaign whose first link is trained."""
    config = toy_config(tmp_path_factory.mktemp("head"), train=TRAIN)
    train_range(config, FIRST, Told())
    return config


@pytest.fixture(scope="module")
def whole(campaign, tmp_path_factory):
    """The checkpoint and the receipt of the second link, trained in one piece beside its shards."""
    folder = tmp_path_factory.mktemp("whole")
    config = copied(campaign, folder)
    train_range(config, SECOND, Told())
    return results(config, SECOND)


TRAIN = {"validate_every": 4, "monitor": "score", "passes_per_link": 2}


def copied(config, folder):
    paths = config.paths()
    shutil.copytree(paths.results.parent, folder, dirs_exist_ok=True)
    return config.model_copy(update={"results": f"{folder}/results", "runs": f"{folder}/runs"})


def results(config, name):
    paths = config.paths()
    receipt = json.loads(paths.receipt(name).read_text())
    files = [paths.receipt(name), paths.best_receipt(name), paths.store(name) / receipt["checkpoint"]]
    return [path.read_bytes() for path in files]


def packed(config, folder, name=SECOND, **options):
    folder.mkdir(parents=True, exist_ok=True)
    pack_link(Campaign.open(config), name, folder / "in.tar", Told(), **options)
    return SlicedJob(folder / "in.tar", folder / "out.tar", str(folder / "state.tar"))


def test_two_heads_pack_the_same_bytes(campaign, tmp_path):
    one = packed(campaign, tmp_path / "1").pack.read_bytes()
    other = packed(copied(campaign, tmp_path / "elsewhere"), tmp_path / "2").pack.read_bytes()
    assert one == other
    assert str(tmp_path).encode() not in one


def test_a_pack_trains_to_the_same_bytes(campaign, whole, tmp_path):
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    train_pack(job, Told())
    assert sorted(path.name for path in job.out.parent.iterdir()) == ["in.tar", "out.tar"]
    for _ in range(2):
        unpack(Campaign.open(head), job.out, Told())
        assert results(head, SECOND) == whole
    assert [row["what"] for row in Journal(head.paths().train_journal()).rows() if "verb" in row][-2:] == [
        "start",
        "finished",
    ]


def test_a_pack_begins_from_trained_weights_where_the_first_range_has_no_event(tmp_path):
    train = {"workload": "toy:FittedToy"}
    trained = toy_config(tmp_path / "trained", train=train)
    train_range(trained, FIRST, Told())
    head = toy_config(tmp_path / "head", train={**train, "pretrained": str(trained.paths().receipt(FIRST))})
    write_shards(head.paths().shards(FIRST), [], Campaign.open(head).data)
    train_range(head, FIRST, Told())
    job = packed(head, tmp_path / "node")
    train_range(head, SECOND, Told())
    whole = head.paths().receipt(SECOND).read_bytes()
    shutil.rmtree(head.paths().store(SECOND))
    head.paths().receipt(SECOND).unlink()
    shutil.rmtree(tmp_path / "trained")
    train_pack(job, Told())
    unpack(Campaign.open(head), job.out, Told())
    assert head.paths().receipt(SECOND).read_bytes() == whole


def strike_after(monkeypatch, calls):
    """Send this process a signal in so many calls of ``collate``."""
    left = iter(range(calls, -1_000_000, -1))

    def strike():
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Toy, "on_collate", staticmethod(strike))


def in_slices(job, rng, monkeypatch, most=100):
    """Train until a result is there; a signal ends each slice at any moment of a step."""
    pieces = 0
    while not job.out.exists():
        strike_after(monkeypatch, rng.randrange(4, 20))
        pieces += 1
        assert pieces < most
        with contextlib.suppress(SliceOver):
            train_pack(job, Told())
    monkeypatch.undo()
    return pieces


def test_slices_end_in_the_same_bytes(campaign, whole, tmp_path, monkeypatch):
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    pieces = in_slices(job, random.Random(1), monkeypatch)
    assert pieces > 2
    unpack(Campaign.open(head), job.out, Told())
    assert results(head, SECOND) == whole
    rows = read_slices(head.paths().slices(SECOND))
    assert len(rows) == pieces
    assert [rows[0].from_step, rows[-1].to_step] == [0, 13]
    for one, other in pairwise(rows):
        assert (one.to_step, one.left) == (other.from_step, other.begun_with)
    verbs = [row for row in Journal(head.paths().train_journal()).rows() if row.get("verb")]
    ends = [row["what"] for row in verbs if row["what"] != "start"][-pieces:]
    assert ends == [*["paused"] * (pieces - 1), "finished"]


def test_shards_may_be_named_instead_of_carried(campaign, whole, tmp_path):
    head, depot = copied(campaign, tmp_path / "head"), tmp_path / "depot"
    job = packed(head, tmp_path / "node", refer=str(depot))
    shards = sorted(path.name for path in depot.iterdir())
    assert all(sha256(depot / name) == name[:64] for name in shards)
    assert job.pack.stat().st_size < sum((depot / name).stat().st_size for name in shards)
    stamps = [(depot / name).stat().st_mtime_ns for name in shards]
    packed(head, tmp_path / "again", refer=str(depot))
    assert stamps == [(depot / name).stat().st_mtime_ns for name in shards]
    train_pack(job, Told())
    unpack(Campaign.open(head), job.out, Told())
    assert results(head, SECOND) == whole
    flip(depot / shards[0])
    with pytest.raises(DataError, match=shards[0]):
        train_pack(packed(campaign, tmp_path / "other", refer=str(depot)), Told())


def test_the_state_may_be_in_a_depot(campaign, whole, tmp_path, monkeypatch):
    """Each slice runs in a folder of its own, and the newest state of the depot may be damaged."""
    head, depot = copied(campaign, tmp_path / "head"), tmp_path / "depot"
    depot.mkdir()
    job = packed(head, tmp_path / "node")
    for number in range(100):
        node = tmp_path / f"node-{number}"
        node.mkdir()
        job = SlicedJob(job.pack, node / "out.tar", str(depot))
        strike_after(monkeypatch, 12)
        if number == 2:
            newest = max(depot.glob("state-*.tar"))
            flip(newest)
        with contextlib.suppress(SliceOver):
            train_pack(job, Told())
        if job.out.exists():
            break
    assert number > 2
    unpack(Campaign.open(head), job.out, Told())
    assert results(head, SECOND) == whole


def test_a_slice_that_is_too_short_is_refused_and_nothing_is_lost(campaign, whole, tmp_path):
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    short = SlicedJob(job.pack, job.out, job.state, 3.0, time.time() - 10.0)
    with pytest.raises(ConfigError, match=r"--slice: 3 s, and link .* took \d+ s to start on .*: slices of"):
        train_pack(short, Told())
    with pytest.raises(ConfigError, match=rf"--slice: 3 s.* \(on {platform.node()}\)"):
        unpack(Campaign.open(head), job.out, Told())
    again = packed(head, tmp_path / "again")
    told = Told()
    train_pack(again, told)
    assert f"{SECOND}: resumes at step" in str(told)
    unpack(Campaign.open(head), again.out, Told())
    assert results(head, SECOND) == whole


def test_three_slices_without_a_step_are_enough(campaign, tmp_path):
    job = packed(campaign, tmp_path / "node")
    row = {"from_step": 0, "to_step": 0, "begun_with": "", "left": "", "seconds": 9.0, "start_seconds": 0.0}
    row |= {"host": "node7", "numerics": "", "stopped": "stopped by SIGTERM"}
    record = read_record(job.pack, ("link",), "")
    name = f"runs/toy/store/{SECOND}/slices.jsonl"
    rows = "".join(json.dumps(row) + "\n" for _ in range(3)).encode()
    write_pack(Path(job.state), new_record("state of a link", "toy", SECOND, record.key), {name: rows})
    with pytest.raises(TrainError, match="3 slices in a row ended without a step .the last one on node7"):
        train_pack(job, Told())
    assert read_record(job.out, ("result of a link",), "").name == SECOND


@pytest.mark.parametrize("damage", ["flip", "cut", "version", "other key"])
def test_a_state_that_does_not_fit_is_named_and_left_out(campaign, whole, tmp_path, monkeypatch, damage):
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    strike_after(monkeypatch, 9)
    with pytest.raises(SliceOver, match=r"at step \d+ of 13; the same command goes on from .*state.tar"):
        train_pack(job, Told())
    monkeypatch.undo()
    state = Path(job.state)
    if damage == "flip":
        flip(state)
    elif damage == "cut":
        state.write_bytes(state.read_bytes()[:-512])
    elif damage == "version":
        monkeypatch.setattr("crpipe.packs.archive.__version__", "0.0.1")
        write_pack(state, new_record("state of a link", "toy", SECOND, "0" * 16), {})
        monkeypatch.undo()
    else:
        write_pack(state, new_record("state of a link", "toy", SECOND, "0" * 16), {})
    told = Told()
    train_pack(job, told)
    assert "it is not used, and training begins where the pack does" in str(told)
    unpack(Campaign.open(head), job.out, Told())
    assert results(head, SECOND) == whole


def test_the_state_of_a_slice_that_was_stopped_before_it_read_its_pack_is_none(campaign, tmp_path):
    job, told = packed(campaign, tmp_path / "node"), Told()
    write_pack(Path(job.state), new_record("state of a link", "", "", ""), {})
    train_pack(job, told)
    assert "warning" not in str(told)
    assert not Path(job.state).exists()


def test_a_divergence_comes_back_as_the_error_that_it_was(campaign, tmp_path):
    config = toy_config(tmp_path / "head", train={**TRAIN, "stop_loss": 1e-9})
    job = packed(config, tmp_path / "node", FIRST)
    with pytest.raises(DivergenceError) as there:
        train_pack(job, Told())
    for _ in range(2):
        with pytest.raises(DivergenceError) as here:
            unpack(Campaign.open(config), job.out, Told())
        assert str(here.value) == f"{there.value} (on {platform.node()})"
    with pytest.raises(DivergenceError, match="delete it to try all the same"):
        packed(config, tmp_path / "again", FIRST)


def test_a_result_of_another_parent_is_refused(campaign, whole, tmp_path):
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    train_pack(job, Told())
    receipt = head.paths().receipt(FIRST)
    edit(receipt, lambda tree: tree.update(sha256="0" * 64))
    with pytest.raises(PackError, match=f"the link before it was trained again.*crpipe pack {SECOND}"):
        unpack(Campaign.open(head), job.out, Told())
    assert not head.paths().receipt(SECOND).exists()


def test_a_disk_of_a_node_that_changes_bytes_is_named(campaign, tmp_path, monkeypatch):
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    shard = f"results/shards/{SECOND}/train-00000.muons.parquet"
    fetched = slices.fetch_referred

    def damaging(config, folder, *more):
        fetched(config, folder, *more)
        flip(folder / shard)

    monkeypatch.setattr(slices, "fetch_referred", damaging)
    with pytest.raises(DiskError, match=f"{shard}: whole when .* the disk of {platform.node()} fails"):
        train_pack(job, Told())
    with pytest.raises(DiskError, match="run the same job on another machine"):
        unpack(Campaign.open(head), job.out, Told())


def in_child(work):
    """Run in a child that does not outlive it; return its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(SliceOver):
            try:
                work()
                code = 0
            finally:
                os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killing(after, monkeypatch):
    """Send SIGKILL in a call of ``collate``, or while a file of the STATE is written."""
    calls = iter(range(after, -1_000_000, -1))

    def strike(*_):
        if next(calls) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Toy, "on_collate", staticmethod(strike))
    add = archive._add
    monkeypatch.setattr(archive, "_add", lambda *words: (strike(), add(*words)))


def test_kills_at_any_moment_change_nothing(campaign, whole, tmp_path, monkeypatch):
    """Some slices are killed while they train, some while they write, the others end by a signal."""
    rng = random.Random(int(os.environ.get("CRPIPE_KILL_SEED", "1")))
    head = copied(campaign, tmp_path / "head")
    job = packed(head, tmp_path / "node")
    kills, wanted = 0, int(os.environ.get("CRPIPE_KILLS", "0")) or 4
    while not job.out.exists() or kills < wanted:
        job.out.unlink(missing_ok=True)
        kill, stop = rng.randrange(30), rng.randrange(4, 20)

        def work(kill=kill, stop=stop, kills=kills):
            strike_after(monkeypatch, stop)
            if kills < wanted:
                softly = Toy.on_collate
                killing(kill, monkeypatch)
                hard = Toy.on_collate
                monkeypatch.setattr(Toy, "on_collate", staticmethod(lambda: (softly(), hard())))
            train_pack(job, Told())

        kills += in_child(work) == -signal.SIGKILL
    unpack(Campaign.open(head), job.out, Told())
    assert results(head, SECOND) == whole
    rows = read_slices(head.paths().slices(SECOND))
    assert [rows[0].from_step, rows[-1].to_step] == [0, 13]
    assert all(
        (one.to_step, one.left) == (other.from_step, other.begun_with) for one, other in pairwise(rows)
    )


def test_two_nodes_at_once_and_a_result_that_comes_twice(campaign, whole, tmp_path, monkeypatch):
    head = copied(campaign, tmp_path / "head")
    jobs = [packed(head, tmp_path / f"node-{number}") for number in range(2)]
    for job in jobs:
        in_slices(job, random.Random(job.out.parent.name), monkeypatch)
    assert jobs[0].out.read_bytes() != jobs[1].out.read_bytes()
    told = Told()
    for job in (*jobs, jobs[0]):
        unpack(Campaign.open(head), job.out, told)
        assert results(head, SECOND) == whole
    assert str(told).count(f"{SECOND}: already finished here; what came back again is left out") == 2
    assert len(read_slices(head.paths().slices(SECOND))) > 2


@pytest.mark.parametrize("damage", ["flip", "leave out"])
def test_each_file_of_a_pack_is_needed_as_it_is(campaign, tmp_path, damage):
    job = packed(campaign, tmp_path / "node")
    with tarfile.open(job.pack) as tar:
        members = [(info, info.offset, info.offset_data) for info in tar.getmembers()]
    whole = job.pack.read_bytes()
    assert len(members) > 10
    for info, begin, data in members:
        end = data + -(-info.size // 512) * 512
        middle = data + info.size // 2
        other = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        job.pack.write_bytes(other if damage == "flip" else whole[:begin] + whole[end:])
        job.out.unlink(missing_ok=True)
        told = Told()
        with pytest.raises(
            PackError, match="in.tar: (this pack is damaged .*; send it again|not a pack)"
        ) as caught:
            train_pack(job, told)
        assert "\n" not in str(caught.value)
        with pytest.raises(PackError, match="in.tar"):
            unpack(Campaign.open(campaign), job.out, Told())
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        job.pack.write_bytes(whole[:size])
        with pytest.raises(PackError, match="this pack is damaged .*; send it again"):
            train_pack(job, Told())


def test_what_is_no_pack_is_said_in_one_sentence(campaign, tmp_path, monkeypatch):
    job = packed(campaign, tmp_path / "node")
    record = read_record(job.pack, ("link",), "")
    record_out = new_record("result of a link", "toy", SECOND, record.key)
    with pytest.raises(
        PackError, match="is the link .*, expected the result of a link or result of a range; bring"
    ):
        unpack(Campaign.open(campaign), job.pack, Told())
    with pytest.raises(ConfigError, match="no such pack"):
        train_pack(SlicedJob(tmp_path / "none.tar", job.out, job.state), Told())
    with tarfile.open(job.pack, "w") as tar:
        tar.add(__file__, "notes.txt")
    with pytest.raises(PackError, match="not a pack of crpipe"):
        train_pack(job, Told())
    write_pack(job.pack, new_record("link", "toy", SECOND, record.key), {"../../evil": b""})
    with pytest.raises(PackError, match="'../../evil' is no name of a file in it"):
        train_pack(job, Told())
    packed(campaign, tmp_path / "node")
    monkeypatch.setattr("crpipe.packs.archive.__version__", "9.9.9")
    with pytest.raises(PackError, match=r"made by crpipe .*, and this is crpipe 9.9.9: use the same version"):
        train_pack(job, Told())
    monkeypatch.undo()
    write_pack(job.out, record_out, {"runs/toy/../x": b""})
    with pytest.raises(PackError, match=r"is no name of a file in it"):
        unpack(Campaign.open(campaign), job.out, Told())
    write_pack(job.out, record_out, {"runs/toy/forks.json": b""})
    with pytest.raises(PackError, match=r"forks.json: no file of link"):
        unpack(Campaign.open(campaign), job.out, Told())


def test_a_node_with_other_numerics_is_refused_where_bytes_count(campaign, whole, tmp_path, monkeypatch):
    """What was trained before comes back with the refusal, and another node goes on from there."""
    head = copied(campaign, tmp_path / "head")
    strict = head.model_copy(update={"train": head.train.model_copy(update={"numerics": "refuse"})})
    job = packed(strict, tmp_path / "node")
    strike_after(monkeypatch, 9)
    with pytest.raises(SliceOver):
        train_pack(job, Told())
    monkeypatch.undo()
    known = loop.numerics
    monkeypatch.setattr(loop, "numerics", lambda world: {**known(world), "threads": 99})
    with pytest.raises(CheckpointError, match=r"computed with other numerics: CPU threads 1, here 99"):
        train_pack(job, Told())
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=rf"train.numerics: warn \(on {platform.node()}\)"):
        unpack(Campaign.open(strict), job.out, Told())
    again, told = packed(strict, tmp_path / "again"), Told()
    train_pack(again, told)
    assert f"{SECOND}: resumes at step" in str(told)
    unpack(Campaign.open(strict), again.out, Told())
    assert results(head, SECOND) == whole
