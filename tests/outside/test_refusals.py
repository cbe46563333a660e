"""Wrong packages and wrong settings: a process ends in one line, before any job where that is possible.

What each of the sentences says is tested where it is made, in tests/unit.
"""

import json
import re

import pytest

from crpipe.core.paths import HASHES
from crpipe.workloads.muons.layout import BUNDLES
from outside.lab import HITS, RANGES, TILES, Lab, changed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BEFORE_ANY_JOB = {
    "no source": (changed(HITS, source__uri=""), ["source.uri", "not set"]),
    "unknown option": (changed(HITS, model={"hiden": 8}), ["model.hiden", "model.hidden"]),
    "reader without rows": (
        changed(HITS, source__reader="brokenlab.reading:NoRows"),
        ["source.reader", "brokenlab.reading:NoRows", "rows"],
    ),
    "workload without score": (
        changed(HITS, train__workload="brokenlab.model:NoScore"),
        ["train.workload", "brokenlab.model:NoScore", "score"],
    ),
    "item columns in another order": (
        changed(HITS, train__workload="brokenlab.model:OtherOrder"),
        ["brokenlab.model:OtherOrder", "time_ns", "detector", "hitlab.reading:HitFiles"],
    ),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A campaign of hitlab that has not begun; copy it before changing anything."""
    return Lab.begin(tmp_path_factory.mktemp("raw") / "campaign", HITS)


@pytest.fixture(scope="module")
def split(raw, tmp_path_factory):
    """Its shards of both ranges; copy it before changing anything."""
    lab = raw.copy(tmp_path_factory.mktemp("split") / "campaign")
    lab.say("tables")
    for name in RANGES:
        for verb in ("list", "stage", "split"):
            lab.say(verb, name)
    return lab


@pytest.fixture
def begin(raw, tmp_path):
    """Prepare a campaign of its own with other settings; the files of hitlab are there."""

    def prepare(settings):
        lab = raw.copy(tmp_path / "campaign")
        lab.configure(settings)
        return lab

    return prepare


def one_line(text):
    """Return what crpipe says, which has to be one line."""
    said = [line for line in text.splitlines() if line.startswith("crpipe: ")]
    assert len(said) == 1, text
    assert "Traceback" not in text
    return said[0]


@pytest.mark.parametrize("what", BEFORE_ANY_JOB)
def test_it_is_refused_before_any_job(what, begin):
    settings, words = BEFORE_ANY_JOB[what]
    lab = begin(settings)
    done = lab.crpipe("plan")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert not [word for word in words if word not in one_line(done.stderr)], done.stderr
    done = lab.snakemake("all", check=False)
    assert done.returncode != 0
    assert not [word for word in words if word not in one_line(done.stdout)], done.stdout
    assert not (lab.results / "manifests").exists()
    assert not (lab.results / "logs").exists()


def test_an_exception_of_a_reader_names_file_and_package(begin):
    lab = begin(changed(HITS, source__reader="brokenlab.reading:Stumbles"))
    lab.say("tables")
    lab.say("list", RANGES[0])
    lab.say("stage", RANGES[0])
    done = lab.crpipe("split", RANGES[0])
    assert done.returncode in (66, 70)
    said = one_line(done.stderr)
    words = ("batch_0.parquet", "brokenlab", "KeyError", "voltage")
    assert not [word for word in words if word not in said], said


def test_an_exception_of_a_simulator_names_file_and_package(begin):
    settings = changed(TILES, source__simulator="brokenlab.simulation:FallsSilent")
    lab = begin(settings)
    lab.say("list", RANGES[0])
    done = lab.crpipe("stage", RANGES[0])
    assert done.returncode == 70
    said = one_line(done.stderr)
    assert not [word for word in ("brokenlab", "ZeroDivisionError: no beam") if word not in said]
    assert re.search(r"tiles_\d", said)  # files are made at the same time: any may be the first to fail


def test_an_exception_of_a_workload_names_it(split, tmp_path):
    lab = split.copy(tmp_path / "campaign")
    lab.configure(changed(HITS, train__workload="brokenlab.model:ScoreFails"))
    lab.say("train", RANGES[0])
    done = lab.crpipe("evaluate", RANGES[0])
    assert done.returncode == 70
    said = one_line(done.stderr)
    words = ("ScoreFails", "KeyError: 'charge_pe'", "brokenlab/model.py")
    assert not [word for word in words if word not in said], said


def test_a_table_that_changed_under_its_path_is_refused(split, tmp_path):
    lab = split.copy(tmp_path / "campaign")
    geometry = lab.folder / "raw" / "geometry.csv"
    geometry.write_text(geometry.read_text().replace("-44.0", "-45.0"))
    done = lab.crpipe("tables")
    assert done.returncode in (2, 65)
    said = one_line(done.stderr)
    assert "geometry" in said
    assert "changed" in said
    refused = lab.snakemake("all", check=False)
    assert refused.returncode != 0
    assert "geometry" in refused.stdout
    assert not lab.run.exists()


def test_a_manifest_with_a_foreign_layout_is_refused(split, tmp_path):
    lab = split.copy(tmp_path / "campaign")
    path = lab.results / "shards" / RANGES[0] / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"layout": BUNDLES.describe()}))
    done = lab.crpipe("train", RANGES[0])
    assert done.returncode == 65
    assert f"its hash is not the recorded one; see what to type: crpipe check {RANGES[0]}" in done.stderr
    for hashes in path.parent.rglob(HASHES):  # as if it had been split so
        hashes.unlink()
    done = lab.crpipe("train", RANGES[0])
    assert done.returncode == 65
    said = one_line(done.stderr)
    assert str(path.relative_to(lab.folder)) in said or str(path.parent.relative_to(lab.folder)) in said
    assert "no column primary_major_id" in said
    assert "same command again" in said or "crpipe " in said


def test_files_are_counted_once_and_a_shorter_last_range_is_legal(begin):
    settings = changed(HITS, ranges={"first": 0, "last": "auto", "size": 3})
    lab = begin(settings)
    lab.snakemake("outliers_consolidated")
    ledgers = {path.stem: json.loads(path.read_text()) for path in (lab.results / "ledgers").glob("*.json")}
    assert {name: ledger["events"]["listed"] for name, ledger in ledgers.items()} == {
        "0000000-0000002": 450,
        "0000003-0000003": 150,
    }
    (lab.folder / "raw" / "batch_4.parquet").write_bytes(
        (lab.folder / "raw" / "batch_3.parquet").read_bytes()
    )
    assert "Nothing to be done" in lab.snakemake("outliers_consolidated").stdout
