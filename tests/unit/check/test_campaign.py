"""Each kind of damage is found and named, and what is printed beside it repairs it."""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import raw_files
from checked import FIRST, SECOND, Checked
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.claims import record_data_keys
from crpipe.campaign.raw_files import Entry, read_staged, write_manifest
from crpipe.check.check import check, open_files
from crpipe.check.data import check_range
from crpipe.core.errors import ConfigError
from crpipe.core.files import remove_tree, sha256
from crpipe.core.lease import lease
from crpipe.core.text import NullProgress
from crpipe.events.layout import Field
from damage import cut, edit, edit_rows, flip
from plain_reader import HITS, make_hits, write_events
from runs import BIN

SHARD = "train-00000.events.parquet"
ITEMS = "train-00000.muons.parquet"
MERGED = "outliers-00000.muons.parquet"


def checkpoint(campaign, link, kind="checkpoint"):
    return next(campaign.paths.store(link).glob(f"{kind}-*.pt"))


def table_of(campaign):
    return campaign.paths.results / "tables" / "notes.txt"


def repeat(key):
    return lambda tree: tree[key].append(tree[key][0])


def drop(key):
    return lambda tree: tree[key].pop()


def assign(*keys):
    *path, last, value = keys

    def change(tree):
        for key in path:
            tree = tree[key]
        assert tree[last] != value
        tree[last] = value

    return change


def edited(file, *words, edit=edit):
    """Change a file, which a method of the campaign's paths names, for example ``receipt`` of a link."""
    *names, change = words
    return lambda campaign: edit(getattr(campaign.paths, file)(*names), change)


def send_elsewhere(rows):
    row = next(row for row in rows if row["destination"] == "train")
    row["destination"] = "validation"


def remove_range(campaign):
    paths = campaign.paths
    table = paths.multiplicity(FIRST)
    for path in (table, table.with_suffix(".histogram.json"), paths.ledger(FIRST)):
        path.unlink()
    for folder in (paths.shards(FIRST), paths.outliers(FIRST)):
        shutil.rmtree(folder)


def written_again(path):
    """Return a file another content and another inode than its second name has."""
    text = path.read_text()
    path.unlink()
    path.write_text(text + "\n")


# What is done to the campaign, what a finding says.
DAMAGE = {
    "flipped byte of events": (lambda c: flip(c.paths.shards(FIRST) / SHARD), f"{SHARD}: damaged"),
    "cut shard": (lambda c: cut(c.paths.shards(FIRST) / ITEMS), "are recorded"),
    "deleted shard": (lambda c: (c.paths.shards(FIRST) / SHARD).unlink(), f"{SHARD}: missing"),
    "shard listed twice": (
        edited("shard_manifest", FIRST, repeat("shards")),
        "events there twice: bundles-",
    ),
    "shard not listed": (edited("shard_manifest", FIRST, drop("shards")), "events missing: bundles-"),
    "role changed": (
        edited("shard_manifest", FIRST, assign("shards", 0, "role", "test")),
        "though the multiplicity table does not send them there: bundles-",
    ),
    "number in a manifest": (edited("shard_manifest", FIRST, assign("shards", 0, "items", 1)), "the ledger"),
    "text in a manifest": (
        edited("shard_manifest", FIRST, assign("shards", 0, "files", "x")),
        "damaged (files is no mapping)",
    ),
    "manifest of other keys": (
        edited("outlier_manifest", FIRST, assign("data", "0" * 16)),
        "made under other keys",
    ),
    "threshold of a manifest": (
        edited("outlier_manifest", FIRST, assign("threshold", 41)),
        "the threshold is 41",
    ),
    "layout of a manifest": (
        edited("shard_manifest", FIRST, assign("layout", "events", 2, "unit", "TeV")),
        "not that of layout.json",
    ),
    "manifest deleted": (lambda c: c.paths.shard_manifest(FIRST).unlink(), "manifest.json: missing"),
    "manifest written again": (
        lambda c: written_again(c.paths.outlier_manifest(SECOND)),
        "is not what the split recorded",
    ),
    "manifest is no JSON": (
        lambda c: c.paths.shard_manifest(FIRST).write_text("{"),
        "cannot be read: ShardError",
    ),
    "ledger deleted": (lambda c: c.paths.ledger(FIRST).unlink(), "missing"),
    "ledger says less": (edited("ledger", FIRST, assign("events", "train", 1)), "to train, the ledger 1"),
    "file in a ledger": (edited("ledger", FIRST, assign("files", 0, "events", 7)), "the ledger says 7"),
    "record deleted": (lambda c: remove_tree(c.paths.shards(FIRST) / ".finished"), "record of the split"),
    "all of a range deleted": (remove_range, "though a finished link was trained on this range"),
    "event sent elsewhere": (
        edited("multiplicity", FIRST, send_elsewhere, edit=edit_rows),
        "to validation, the ledger",
    ),
    "row twice in the table": (
        edited("multiplicity", FIRST, lambda rows: rows.insert(1, rows[1]), edit=edit_rows),
        "each once",
    ),
    "row missing in the table": (
        edited("multiplicity", FIRST, lambda rows: rows.pop(5), edit=edit_rows),
        "each once",
    ),
    "group in the table": (
        edited("multiplicity", FIRST, lambda rows: rows[0].update(primary_minor_id=9), edit=edit_rows),
        ".finished/multiplicity.parquet: damaged: its bytes",
    ),
    "table deleted": (lambda c: c.paths.multiplicity(FIRST).unlink(), "missing"),
    "list without a file": (
        edited("manifest", FIRST, lambda rows: rows.pop(), edit=edit_rows),
        "bundles-0000001.parquet: gone",
    ),
    "list names a file twice": (
        edited("manifest", FIRST, lambda rows: rows.append(rows[0]), edit=edit_rows),
        "cannot be read: DataError",
    ),
    "list deleted": (lambda c: c.paths.manifest(FIRST).unlink(), "missing"),
    "merged outliers": (lambda c: flip(c.paths.outliers("consolidated") / MERGED), f"{MERGED}: damaged"),
    "merged from other outliers": (
        edited("outlier_manifest", "consolidated", assign("inputs", FIRST, "0" * 16)),
        "made from other outliers",
    ),
    "merged outliers listed twice": (
        edited("outlier_manifest", "consolidated", repeat("shards")),
        "of outliers, the ranges",
    ),
    "merged outliers deleted": (
        lambda c: c.paths.outlier_manifest("consolidated").unlink(),
        "though the outliers were trained on",
    ),
    "index": (
        lambda c: edit_rows(
            c.paths.outliers("consolidated") / "index.parquet", lambda rows: rows[0].update(position=9)
        ),
        "index.parquet: damaged: its bytes",
    ),
    "receipt of another parent": (edited("receipt", SECOND, assign("parent", "0" * 64)), "parent is '000"),
    "number in a receipt": (edited("receipt", FIRST, assign("metrics", "critic/loss", 0.5)), "metrics is"),
    "round of a receipt": (edited("receipt", FIRST, assign("round", 2)), "round is 2"),
    "ranges of a receipt": (edited("receipt", FIRST, assign("ranges", [SECOND])), "ranges is"),
    "events of a receipt": (edited("receipt", SECOND, assign("events", 5)), "events is 5"),
    "text in a receipt": (lambda c: c.paths.receipt(SECOND).write_text("[]"), "cannot be read: DataError"),
    "receipt deleted": (lambda c: c.paths.receipt(FIRST).unlink(), "though later links are trained"),
    "checkpoint": (lambda c: flip(checkpoint(c, FIRST)), "damaged: its bytes"),
    "last checkpoint deleted": (lambda c: checkpoint(c, "outliers").unlink(), "missing"),
    "best checkpoint": (lambda c: flip(checkpoint(c, SECOND, "best")), "damaged: its bytes"),
    "best checkpoint deleted": (lambda c: checkpoint(c, SECOND, "best").unlink(), "missing"),
    "best receipt": (edited("best_receipt", FIRST, assign("value", 0.5)), "value is 0.5"),
    "best receipt deleted": (
        lambda c: c.paths.best_receipt(FIRST).unlink(),
        "missing, though there is a best checkpoint",
    ),
    "snapshot": (
        lambda c: (c.paths.store(FIRST) / f"snapshot-x-0000000001-{'0' * 16}.pt").write_bytes(b"half"),
        "hash in its name",
    ),
    "recorded keys": (lambda c: c.paths.campaign().write_text("{}"), "is not the layout of campaign.json"),
    "layout": (edited("layout", assign("item", "hits")), "is not the layout of campaign.json"),
    "keys of the run deleted": (lambda c: c.paths.run_config().unlink(), "missing"),
    "keys of the run": (
        edited("run_config", assign("seed", 2)),
        "not hold the keys that the run was trained with",
    ),
    "keys of the data": (
        edited("campaign", assign("seed", 2)),
        "not hold the keys that the shards were made with",
    ),
    "meaning in the layout": (
        edited("layout", assign("events", 2, "meaning", "mass")),
        "is not the layout of the shards",
    ),
    "side table": (lambda c: flip(table_of(c)), "damaged: its bytes"),
    "side table deleted": (lambda c: table_of(c).unlink(), "missing"),
    "record of the side tables": (lambda c: c.paths.tables().write_text("{"), "cannot be read: DataError"),
}


def lines(report):
    return [f"{finding.path}: {finding.what}" for finding in report.errors]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_its_remedy_repairs_it(campaign, kind):
    before = campaign.contents()
    damage, said = DAMAGE[kind]
    damage(campaign)
    report = campaign.check()
    assert any(said in line for line in lines(report)), lines(report)
    for remedy in dict.fromkeys(finding.remedy for finding in report.errors):
        campaign.type(remedy)
    assert lines(campaign.check()) == []
    after = {name: data for name, data in campaign.contents().items() if not name.endswith(".damaged")}
    assert {name for name in before if after.get(name) != before[name]} - {*regenerated(campaign)} == set()


def regenerated(campaign):
    """Files that hold a time."""
    folder = campaign.folder
    return [str(path.relative_to(folder)) for path in (campaign.folder / "results" / "staged").rglob("*")]


def test_a_sound_campaign_is_proved_and_left_as_it_is(sound):
    before = {path: path.stat().st_mtime_ns for path in sound.folder.rglob("*")}
    report = sound.check()
    assert (lines(report), report.notes) == ([], [])
    assert report.counts["events"] == 480
    assert [report.counts[name] for name in ("ranges", "links", "checkpoints", "evaluations", "tables")] == [
        2,
        3,
        6,
        1,
        1,
    ]
    assert {path: path.stat().st_mtime_ns for path in sound.folder.rglob("*")} == before


def test_an_evaluation_names_its_checkpoint_and_has_a_row_for_each_event(campaign):
    numbers = campaign.paths.evaluation(FIRST) / "metrics.json"
    rows = numbers.with_name("predictions.parquet")
    edit(numbers, assign("checkpoint", "0" * 64))
    edit_rows(rows, lambda found: found.pop())
    first, second, *others = campaign.check().errors
    assert "no receipt of this link names" in first.what
    assert "metrics.json says" in second.what
    assert ["damaged: its bytes" in each.what for each in others] == [True, True]
    rows.unlink()
    assert campaign.check().errors[1].what == "missing"
    campaign.type(first.remedy)
    assert lines(campaign.check()) == []


def test_a_campaign_that_grows_is_not_damaged(campaign):
    grown = replace(campaign, keys=("ranges.last=5", "train.schedule.horizon_ranges=2")).check()
    assert lines(grown) == []
    assert (
        "link outliers",
        "to be trained again: it does not go on from the link that is before it now",
    ) in [(each.path, each.what) for each in grown.notes]


def test_merged_outliers_of_a_range_that_is_left_out_are_noted(campaign):
    left = replace(campaign, keys=(f"ranges.skip=[{SECOND}]", "train.schedule.horizon_ranges=2"))
    report = left.check("consolidated")
    assert lines(report) == []
    assert [(each.path, each.what) for each in report.notes] == [
        (SECOND, "its outliers are consolidated, and it is no range now")
    ]


def test_the_settings_of_an_evaluation_have_their_digest(campaign):
    edit(campaign.paths.evaluation(FIRST) / ".finished" / "key.json", assign("seed", 2))
    (finding,) = campaign.check().errors
    assert "its values do not have the digest in it" in finding.what


def test_a_link_names_the_shards_that_it_was_trained_on_and_their_events(campaign):
    path = campaign.paths.shard_manifest(FIRST)
    edit(path, repeat("shards"))
    damaged = campaign.check(FIRST)
    assert not [each.remedy for each in damaged.errors if "crpipe train" in each.remedy]
    assert any("its shards are not compared" in each.what for each in damaged.notes)
    edit(path.parent / ".finished" / "hashes.json", assign("shards.json", sha256(path)))
    errors = lines(campaign.check(FIRST))
    for what in ("events, its shards hold", "names other shards than there are in"):
        assert any(what in line for line in errors), errors


@pytest.mark.slow
def test_an_export_is_whole_and_of_a_checkpoint_of_the_run(campaign, tmp_path):
    out = tmp_path / "an export"
    campaign.crpipe("export", "--checkpoint", SECOND, "--out", str(out))

    def found():
        return check(open_files(campaign.config), (), NullProgress(), exports=[out])

    sound = found()
    assert (lines(sound), sound.counts["exports"]) == ([], 1)
    flip(out / "README.md" if (out / "README.md").exists() else next(out.glob("*.safetensors")))
    (finding,) = found().errors
    assert "damaged: its bytes" in finding.what
    campaign.type(finding.remedy)
    edit(out / "config.json", assign("checkpoint", "0" * 64))
    (finding,) = found().errors
    assert "no receipt of this run names" in finding.what
    campaign.type(finding.remedy)
    assert lines(found()) == []


def test_a_damaged_name_cannot_write_to_the_terminal(campaign):
    edit(campaign.paths.shard_manifest(FIRST), assign("shards", 0, "name", "x\x1b[2J\ny"))
    said = lines(campaign.check())
    assert any("x?[2J?y.events.parquet: missing" in line for line in said)
    assert all(line.isprintable() for line in said)


def test_what_a_job_replaces_in_between_is_not_wrong(campaign, monkeypatch):
    """The first look finds damage; before the second one the file is whole again."""
    path = campaign.paths.shards(FIRST) / SHARD
    whole, looks = path.read_bytes(), []
    flip(path)

    def look(*unit):
        looks.append(unit)
        found = check_range(*unit)
        path.write_bytes(whole)
        return found

    monkeypatch.setattr("crpipe.check.check.check_range", look)
    assert lines(campaign.check(FIRST)) == []
    assert len(looks) == 2


def test_several_processes_find_the_same(campaign):
    flip(campaign.paths.shards(FIRST) / SHARD)
    cut(checkpoint(campaign, SECOND))
    one, two = campaign.check(), campaign.check(processes=2)
    assert len(one.errors) > 1
    assert (one.findings, one.counts) == (two.findings, two.counts)


def test_names_limit_what_is_checked(campaign):
    flip(campaign.paths.shards(FIRST) / SHARD)
    assert lines(campaign.check(SECOND, "outliers", "consolidated")) == []
    assert lines(campaign.check(FIRST)) != []
    with pytest.raises(ConfigError, match="nothing: neither a range nor a link"):
        campaign.check("nothing")


def test_a_checkpoint_that_nobody_needs_any_more_may_be_gone(campaign):
    checkpoint(campaign, FIRST).unlink()
    report = campaign.check()
    assert lines(report) == []
    assert [note.path for note in report.notes] == [f"link {FIRST}"]
    edit(campaign.paths.receipt(FIRST), assign("round", 2))
    assert "round is 2" in lines(campaign.check())[0]


def test_running_jobs_are_not_judged(campaign):
    flip(campaign.paths.shards(FIRST) / SHARD)
    flip(checkpoint(campaign, SECOND))
    flip(campaign.paths.outliers("consolidated") / MERGED)
    folders = (
        campaign.paths.shards(FIRST),
        campaign.paths.store(SECOND),
        campaign.paths.outliers("consolidated"),
    )
    with contextlib.ExitStack() as held:
        for folder in folders:
            held.enter_context(lease(folder, wait_s=0, say=print))
        report = campaign.check()
    assert lines(report) == []
    assert {note.path for note in report.notes} == {FIRST, f"link {SECOND}", "consolidated"}


def test_a_campaign_that_is_half_done_is_judged_as_far_as_it_is(tmp_path):
    campaign = Checked(tmp_path, ("ranges.last=7",))
    assert next(note.what for note in campaign.check().notes) == "no job has run yet"
    third, fourth = "0000004-0000005", "0000006-0000007"
    campaign.split(FIRST)
    campaign.crpipe("train", FIRST)
    for verb in ("list", "stage"):
        campaign.crpipe(verb, SECOND)
    campaign.crpipe("list", third)
    report = campaign.check()
    assert lines(report) == []
    assert (report.counts["ranges"], report.counts["links"]) == (1, 1)
    notes = {note.path: note.what for note in report.notes}
    assert notes[SECOND].startswith("staged, not split yet")
    assert notes[third] == "listed, not staged yet"
    assert notes[fourth] == "not listed yet"
    assert notes["consolidated"] == "not consolidated yet"
    copy = next(campaign.paths.raw(SECOND).glob("*.parquet"))
    flip(copy)
    (finding,) = campaign.check().errors
    assert finding.path == str(copy)
    assert "changed since it was staged" in finding.what
    campaign.type(finding.remedy)
    assert lines(campaign.check()) == []


@pytest.mark.slow
def test_the_command_line_lists_everything_exits_with_65_and_prints_commands_that_repair_it(campaign):
    flip(campaign.paths.shards(FIRST) / SHARD)
    checkpoint(campaign, "outliers").unlink()
    words = [word for file in campaign.files for word in ("--config", str(file))]
    words += [word for key in campaign.overrides for word in ("--set", key)]
    variables = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}

    def shell(command):
        return subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=variables)

    check = shlex.join(["crpipe", *words, "check"])
    done = shell(check)
    assert done.returncode == 65, done.stderr
    end = r"(1 thing is|\d+ things are) wrong; type what is listed, in this order, then check again\n$"
    assert re.search(end, done.stderr)
    commands = re.findall(r"^    type: (.*)$", done.stdout, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert shell(command).returncode == 0
    assert shell(check).returncode == 0


def test_the_command_line_needs_no_torch(sound):
    code = (
        "import sys; from typer.testing import CliRunner; from crpipe.cli.app import app; "
        "done = CliRunner().invoke(app, sys.argv[1:]); print(done.output); "
        "assert done.exit_code == 0; assert 'torch' not in sys.modules"
    )
    words = [word for file in sound.files for word in ("--config", str(file))]
    words += [word for key in sound.overrides for word in ("--set", key)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout


def test_the_hash_of_the_bytes_is_that_of_the_manifest(sound):
    """What every proof of a shard rests on."""
    manifest = sound.paths.shard_manifest(FIRST).read_text()
    assert hashlib.sha256((sound.paths.shards(FIRST) / SHARD).read_bytes()).hexdigest() in manifest


def test_the_threshold_of_a_quantile_is_that_of_the_shards(tmp_path):
    campaign = Checked(tmp_path, ("split.quantile=0.9",))
    for verb in (("list", FIRST), ("stage", FIRST), ("threshold",), ("split", FIRST)):
        campaign.crpipe(*verb)
    campaign.split(SECOND)
    remove_tree(campaign.paths.results / "staged")
    before = campaign.paths.threshold().read_bytes()
    assert lines(campaign.check()) == []
    edit(campaign.paths.threshold(), assign("threshold", 10**6))
    (finding,) = campaign.check().errors
    assert "does not hold the threshold of the shards" in finding.what
    campaign.type(finding.remedy)
    assert campaign.paths.threshold().read_bytes() == before
    assert lines(campaign.check()) == []


def test_a_run_that_began_from_another_checkpoint_names_it(sound, tmp_path):
    campaign = sound.copy(tmp_path / "campaign")
    source = campaign.paths.receipt(SECOND)
    fork = Checked(campaign.folder, (*campaign.keys, "run=fork", f"train.pretrained={source}"))
    fork.crpipe("train", FIRST)
    assert lines(fork.check()) == []
    edit(source, assign("sha256", "0" * 64))
    assert "parent is" in lines(fork.check(FIRST))[0]
    source.unlink()
    assert [note.what for note in fork.check(FIRST).notes] == [
        f"{source}, from which the run began, is not here"
    ]


def split_one(config, source_files=0):
    """Split a range whose raw files were written as staged; return its campaign."""
    name, paths = raw_files.NAME, config.paths()
    entries = [Entry(file.path, file.uri, file.size, None) for file in read_staged(paths.staged(name))]
    write_manifest(paths.manifest(name), entries, source_files)
    record_data_keys(Campaign.open(config))
    raw_files.split(config)
    return open_files(config)


def test_a_campaign_of_the_first_files_is_sound(tmp_path):
    config = raw_files.campaign(tmp_path)
    raw_files.write_parquet(raw_files.raw_folder(config) / "a.parquet", [1, 2, 3])
    raw_files.write_staged(config)
    campaign = split_one(config, source_files=7)
    assert lines(check(campaign, (), NullProgress())) == []


def remove_hashes(campaign):
    files = list(campaign.folder.rglob("hashes.json"))
    assert len(files) == 4  # two ranges, the consolidated outliers, an evaluation
    for path in files:
        path.unlink()


def test_a_campaign_that_recorded_no_hashes_has_notes_and_is_proved(campaign):
    remove_hashes(campaign)
    report = campaign.check()
    assert lines(report) == []
    assert report.counts["events"] == 480
    assert {note.what for note in report.notes} == {
        "was made by a crpipe that recorded no hashes of its files"
    }
    assert [note.path for note in report.notes] == [FIRST, SECOND, "consolidated", f"evaluation {FIRST}"]


def drop_an_event(campaign):
    """Leave an event out of a shard, and let the manifest name the bytes of now."""
    path = campaign.paths.shards(FIRST) / SHARD
    edit_rows(path, lambda rows: rows.pop())
    name_bytes(campaign.paths.shard_manifest(FIRST), path)


def double_an_event(campaign):
    path = campaign.paths.shards(FIRST) / SHARD
    edit_rows(path, lambda rows: rows.append(rows[-1]))
    name_bytes(campaign.paths.shard_manifest(FIRST), path)


def change_a_multiplicity(campaign):
    path = campaign.paths.shards(FIRST) / SHARD
    edit_rows(path, lambda rows: rows[0].update(multiplicity=rows[0]["multiplicity"] + 1))
    name_bytes(campaign.paths.shard_manifest(FIRST), path)


def name_bytes(manifest, path):
    def change(tree):
        entry = next(each for each in tree["shards"] if path.name.startswith(f"{each['name']}."))
        data = path.read_bytes()
        entry["files"]["events"] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    edit(manifest, change)


EVENTS_CHANGED = {
    "dropped": (drop_an_event, "train: 1 event missing: bundles-"),
    "doubled": (double_an_event, "train: 1 event there twice: bundles-"),
    "sent elsewhere": (DAMAGE["event sent elsewhere"][0], "to validation, the ledger"),
    "row gone": (DAMAGE["row missing in the table"][0], "each once"),
    "ledger": (DAMAGE["file in a ledger"][0], "the ledger says 7"),
    "multiplicity": (change_a_multiplicity, "train: 1 event there with another multiplicity: bundles-"),
}


@pytest.mark.parametrize("kind", EVENTS_CHANGED)
def test_events_are_proved_without_any_hash(campaign, kind):
    remove_hashes(campaign)
    change, what = EVENTS_CHANGED[kind]
    change(campaign)
    assert any(what in line for line in lines(campaign.check()))


def test_rejected_events_and_files_set_aside_are_accounted_for(tmp_path):
    keys = ("split.on_bad_event=reject", "source.on_bad_file=quarantine")
    config = raw_files.campaign(tmp_path, *keys)
    name, paths = raw_files.NAME, config.paths()
    folder = raw_files.raw_folder(config)
    for number in range(3):
        columns, multiplicity, items = raw_files.make_events([3, 0, 30, 5], seed=number)
        columns["zenith_rad"][number] = 7
        pq.write_table(raw_files.nested(columns, multiplicity, items), folder / f"{number}.parquet")
    cut(folder / "2.parquet")
    raw_files.write_staged(config, quarantined=["3.parquet"])
    campaign = split_one(config)
    report = check(campaign, (), NullProgress())
    assert lines(report) == []
    assert report.counts["events"] == 8
    ledger = json.loads(paths.ledger(name).read_text())
    assert (ledger["events"]["rejected"], ledger["quarantined"]) == (2, 2)
    edit(paths.ledger(name), assign("rejected", 0, "row", 2))
    assert "ledger.json: damaged: its bytes" in lines(check(campaign, (), NullProgress()))[0]


def test_weights_add_up(tmp_path):
    keys = ("source.reader=plain_reader:Plain", "split.test_fraction=0.4", "split.on_bad_event=reject")
    config = raw_files.campaign(tmp_path, *keys)
    flux = Field("flux", "float32", "", 0, 1e6, "weight")
    layout = replace(HITS, events=(*HITS.events, flux), weight="flux").describe()
    config = config.model_copy(update={"reader": {"layout": layout}})
    events = make_hits([1, 30, 2] * 20)
    events.columns["flux"] = np.linspace(0, 1, 60, dtype=np.float32)
    events.columns["flux"][:3] = np.nan, -2, np.inf
    write_events(raw_files.raw_folder(config) / "a.npz", events)
    raw_files.write_staged(config)
    campaign = split_one(config)
    assert lines(check(campaign, (), NullProgress())) == []
    ledger, name = config.paths().ledger(raw_files.NAME), "outliers"
    edit(ledger, lambda tree: tree["weights"].update({name: tree["weights"][name] * 1.0001}))
    assert "ledger.json: damaged: its bytes" in lines(check(campaign, (), NullProgress()))[0]


def test_a_link_that_was_computed_in_another_way_than_the_one_before_is_noted(sound, tmp_path):
    whole = sound.copy(tmp_path / "campaign")
    campaign = Checked(whole.folder, (*whole.keys, "train.threads=2"))
    for link in (SECOND, "outliers"):
        shutil.rmtree(campaign.paths.store(link))
        campaign.paths.receipt(link).unlink()
        campaign.crpipe("train", link)
    report = campaign.check()
    assert [note.path for note in report.notes] == [f"link {SECOND}"]
    assert report.notes[0].what.startswith(f"has other numerics than {FIRST}: device cpu, threads ")
    assert "nothing is wrong" in campaign.crpipe("check")


@pytest.mark.parametrize("folder", ["results", "runs/tiny"])
def test_a_record_of_code_is_as_it_was_written(campaign, folder):
    record, other = (campaign.folder / name / "code.json" for name in ("results", "runs/tiny"))
    path = campaign.folder / folder / "code.json"
    sound, meant = path.read_bytes(), json.loads(path.read_text())

    def is_named():
        report = campaign.check()
        return any("code.json" in str(finding) for finding in report.findings)

    assert not is_named()
    for place in range(0, len(sound), 97):
        path.write_bytes(sound)
        flip(path, place)
        assert is_named() or json.loads(path.read_text()) == meant
    path.write_bytes((other if path == record else record).read_bytes())
    assert is_named()
    path.unlink()
    assert is_named()
