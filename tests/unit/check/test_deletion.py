"""What `crpipe clean` deletes is needed by nothing: check, status and training go on."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from checked import FIRST, SECOND, finished
from crpipe.check import clean
from crpipe.core.errors import CheckpointError, ConfigError, LeaseError
from crpipe.core.files import sha256
from crpipe.core.lease import lease
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import NullProgress
from damage import edit
from opened import opened
from told import Told

THIRD = "0000004-0000005"
LINKS = (FIRST, SECOND, THIRD, OUTLIERS)


@pytest.fixture(scope="session")
def grown(tmp_path_factory):
    """A finished campaign of four links; keeps the checkpoints of the newest one."""
    campaign = finished(tmp_path_factory.mktemp("grown"), (FIRST, SECOND, THIRD), "ranges.last=5")
    return replace(campaign, keys=(*campaign.keys, "train.keep_links=1"))


@pytest.fixture
def campaign(grown, tmp_path):
    return grown.copy(tmp_path / "campaign")


def delete_spent(campaign, keep=()):
    return clean.clean(opened(campaign.config), keep, NullProgress(), workplace=campaign.folder)


def find_spent(campaign, keep=()):
    return clean.find_spent(opened(campaign.config), keep, campaign.folder)


def checkpoints(campaign, kind="checkpoint"):
    found = {link: sorted(campaign.paths.store(link).glob(f"{kind}-*.pt")) for link in LINKS}
    return [link for link, paths in found.items() if paths]


def names(spent):
    return [each.link for each in spent if each.recorded]


def leave_part(path, age_s=100_000.0):
    path.write_text("half")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_only_what_nothing_needs_goes_and_check_and_status_find_nothing_wrong(campaign):
    before = {link: campaign.paths.receipt(link).read_bytes() for link in LINKS}
    shown = campaign.crpipe("clean")
    assert checkpoints(campaign) == list(LINKS)
    assert f"{campaign.paths.receipt(SECOND)} goes on from it and is finished; the newest 1 stay" in shown
    assert "nothing was deleted; `crpipe clean --yes`" in shown
    spent = delete_spent(campaign)
    # The last ranges of the first round stay: added ranges would go on from there.
    assert names(spent) == [FIRST]
    assert checkpoints(campaign) == [SECOND, THIRD, OUTLIERS]
    assert checkpoints(campaign, "best") == list(LINKS)
    assert {link: campaign.paths.receipt(link).read_bytes() for link in LINKS} == before
    report = campaign.check()
    assert report.errors == []
    assert any("was deleted by `crpipe clean`" in note.what for note in report.notes)
    assert "3 of 3 ranges" in campaign.crpipe("status")
    campaign.crpipe("summary")
    assert delete_spent(campaign) == []


def test_without_the_key_every_checkpoint_stays(campaign):
    all_of_them = replace(campaign, keys=(*campaign.keys, "train.keep_links=0"))
    assert delete_spent(all_of_them) == []
    assert "train.keep_links is 0" in all_of_them.crpipe("clean")


def test_a_lost_receipt_of_a_dropped_checkpoint_is_written_again(campaign):
    """Snakemake deletes it before a job runs again, for example because its shards were made again."""
    delete_spent(campaign)
    receipt = campaign.paths.receipt(FIRST)
    before = receipt.read_bytes()
    receipt.unlink()
    campaign.crpipe("train", FIRST)
    assert receipt.read_bytes() == before
    assert checkpoints(campaign) == [SECOND, THIRD, OUTLIERS]
    assert campaign.check().errors == []


def test_a_dropped_checkpoint_is_named_where_it_is_asked_for(campaign):
    delete_spent(campaign)
    with pytest.raises(
        CheckpointError, match="deleted by `crpipe clean` on .* use the checkpoint of another"
    ):
        campaign.crpipe("evaluate", FIRST)
    campaign.crpipe("evaluate", SECOND)
    campaign.crpipe("evaluate", "--checkpoint", f"{FIRST}.best")


@pytest.mark.parametrize("user", ["evaluation", "fork", "moved", "run", "keep"])
def test_what_something_else_names_stays(campaign, user, tmp_path):
    path = next(campaign.paths.store(FIRST).glob("checkpoint-*.pt"))
    keep = ()
    if user == "evaluation":
        folder = campaign.paths.evaluation("older")
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"checkpoint": sha256(path)}))
    elif user == "fork":
        out = tmp_path / "fork.yaml"
        change = ("--set", "train.gradient_clip_norm=5.0", "--out", str(out))
        campaign.crpipe("fork", "--from", FIRST, "--run", "forked", *change)
    elif user == "moved":  # or restored elsewhere, after the fork
        there = f"/elsewhere/runs/default/store/{FIRST}/{path.name}"
        campaign.paths.forks().write_text(json.dumps({"forked": there}))
    elif user == "run":
        other = campaign.paths.runs / "other"
        other.mkdir()
        (other / "campaign.json").write_text(
            json.dumps({"train.init_from": str(campaign.paths.receipt(FIRST))})
        )
    else:
        keep = (FIRST,)
    assert names(find_spent(campaign, keep)) == []
    assert delete_spent(campaign, keep) == []
    assert path.exists()


def test_a_link_to_keep_has_to_be_one(campaign):
    with pytest.raises(ConfigError, match="not a link of this campaign"):
        find_spent(campaign, ("0000009-0000010",))


@pytest.mark.parametrize("state", ["not finished", "went on from another one"])
def test_a_checkpoint_stays_until_the_next_link_went_on_from_it(campaign, state):
    receipt = campaign.paths.receipt(SECOND)
    if state == "not finished":
        receipt.unlink()
    else:
        edit(receipt, lambda tree: tree.update(parent="0" * 64))
    assert names(find_spent(campaign)) == []


def test_as_long_as_a_checkpoint_to_keep_is_damaged_nothing_goes(campaign):
    path = next(campaign.paths.store(OUTLIERS).glob("checkpoint-*.pt"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError, match="is not whole, nothing is deleted; see `crpipe check outliers`"
    ):
        delete_spent(campaign)
    assert checkpoints(campaign) == list(LINKS)


def test_leftovers_of_killed_writers_and_spent_snapshots_go_what_lives_stays(campaign):
    paths = campaign.paths
    row = json.loads(paths.receipt(SECOND).read_text())
    gone = [
        leave_part(paths.shards(FIRST) / ".train-00000.events.parquet.elsewhere.12.0a1b2c3d.part"),
        leave_part(paths.store(THIRD) / ".snapshot-x.pt.elsewhere.12.0a1b2c3d.part"),
        paths.store(SECOND) / f"snapshot-{row['key']}-0000000002-{'0' * 16}.pt",
        paths.store(SECOND) / f"snapshot-{row['key']}-0000000004-{'0' * 16}.damaged",
    ]
    gone[2].write_text("spent")
    gone[3].write_text("damaged")
    raw = paths.raw(FIRST)
    raw.mkdir(parents=True)
    stays = [
        leave_part(raw / ".copy.elsewhere.12.0a1b2c3d.part"),
        leave_part(paths.results / ".new.part", 10.0),
    ]
    logs = campaign.folder / ".snakemake" / "log"
    logs.mkdir(parents=True)
    for number in range(12):
        (logs / f"2026-11-{number + 10}T000000.000000.snakemake.log").write_text("a call")
    spent = delete_spent(campaign)
    assert {each.path for each in spent} >= {*gone}
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stays)
    assert len(list(logs.iterdir())) == 10
    assert all(each.why for each in spent)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_killed_at_any_deletion_the_next_call_goes_on(campaign, monkeypatch, number):
    store = campaign.paths.store(FIRST)
    for name in ("one", "two"):
        (store / f"{name}.damaged").write_text("damaged")
    left, unlink = [number], Path.unlink

    def dies(path, **options):
        if left[0] == 0 and path.suffix in (".pt", ".damaged"):
            raise KeyboardInterrupt
        left[0] -= path.suffix in (".pt", ".damaged")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", dies)
    with pytest.raises(KeyboardInterrupt):
        delete_spent(campaign)
    monkeypatch.undo()
    assert campaign.check().errors == []
    delete_spent(campaign)
    assert checkpoints(campaign) == [SECOND, THIRD, OUTLIERS]
    assert campaign.check().errors == []


@pytest.mark.parametrize("place", ["head", "job"])
def test_nothing_is_deleted_while_a_workflow_or_a_job_works(campaign, place):
    head = campaign.folder / ".snakemake" / "head"
    folder, text = (
        (head, "A workflow runs in this directory: let it end, or stop it with Ctrl-C")
        if place == "head"
        else (campaign.paths.store(FIRST), "already being worked on by process")
    )
    with (
        lease(folder, wait_s=0.0, say=Told().message),
        pytest.raises(LeaseError, match=text),
    ):
        delete_spent(campaign)
    assert checkpoints(campaign) == list(LINKS)
    with lease(campaign.paths.store(SECOND), wait_s=0.0, say=Told().message):
        assert names(delete_spent(campaign)) == [FIRST]


def test_a_link_whose_lease_is_not_held_waits_for_the_next_time(campaign, monkeypatch):
    """Another directory's workflow finished it between the two looks."""
    looks = iter([[], clean.list_spent(opened(campaign.config), (), campaign.folder)])
    monkeypatch.setattr(clean, "list_spent", lambda *_: next(looks))
    assert delete_spent(campaign) == []
    assert checkpoints(campaign) == list(LINKS)
