"""Wrong packages and wrong settings: each is refused in one line, before any job where that is possible."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.workloads.muons.layout import BUNDLES
from outside.lab import HITS, RANGES, TILES, Lab, changed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BEFORE_ANY_JOB = {
    "reader that does not import": (
        changed(HITS, source__reader="nolab.reading:HitFiles", reader={}),
        ["source.reader", "nolab.reading", "No module named 'nolab'", "PYTHONPATH"],
    ),
    "name that its module does not offer": (
        changed(HITS, source__reader="hitlab.reading:HitFile", reader={}),
        ["source.reader", "hitlab.reading", "HitFile", "did you mean HitFiles?"],
    ),
    "no reader": (changed(HITS, source__reader="", reader={}), ["source.reader", "not set", "module:Name"]),
    "no source": (changed(HITS, source__uri=""), ["source.uri", "not set"]),
    "no workload": (changed(HITS, train__workload="", model={}), ["train.workload", "not set"]),
    "reader without rows": (
        changed(HITS, source__reader="brokenlab.reading:NoRows"),
        ["source.reader", "brokenlab.reading:NoRows", "rows"],
    ),
    "reader without a layout": (
        changed(HITS, source__reader="brokenlab.reading:NoLayout"),
        ["source.reader", "brokenlab.reading:NoLayout", "layout", "crpipe.events.layout.Layout"],
    ),
    "items that are no float32": (
        changed(HITS, source__reader="brokenlab.reading:DoubleItems"),
        ["brokenlab.reading:DoubleItems", "charge_pe", "float64", "float32"],
    ),
    "workload without score": (
        changed(HITS, train__workload="brokenlab.model:NoScore"),
        ["train.workload", "brokenlab.model:NoScore", "score"],
    ),
    "item columns in another order": (
        changed(HITS, train__workload="brokenlab.model:OtherOrder"),
        ["brokenlab.model:OtherOrder", "time_ns", "detector", "hitlab.reading:HitFiles"],
    ),
    "simulator of another layout": (
        changed(TILES, source__simulator="brokenlab.simulation:OtherTiles"),
        ["source.simulator", "brokenlab.simulation:OtherTiles", "signal", "tilelab.reading:TileFiles"],
    ),
    "threshold below the size of every event": (
        changed(TILES, split__outlier_above=63),
        ["split.outlier_above", "63", "64"],
    ),
    "simulator in the URI": (changed(TILES, source__uri="synthetic://tiles"), ["source.uri", "synthetic://"]),
    "old name of the simulator": (changed(HITS, synthetic={"depths": 1}), ["synthetic", "source.simulator"]),
    "unknown option": (changed(HITS, model={"hiden": 8}), ["model.hiden", "model.hidden"]),
    "option out of its bounds": (changed(HITS, reader={"charge_scale": 0}), ["reader.charge_scale", "0"]),
}

# The workflow asks as `crpipe plan` does: of each kind of refusal, one is tried with it too.
BY_THE_WORKFLOW = {"unknown option", "reader without rows", "item columns in another order", "no source"}


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
    if what in BY_THE_WORKFLOW:
        done = lab.snakemake("all", check=False)
        assert done.returncode != 0
        assert not [word for word in words if word not in one_line(done.stdout)], done.stdout
    assert not (lab.results / "manifests").exists()
    assert not (lab.results / "logs").exists()


def stage(lab):
    """Stage the side tables and the files of the first range."""
    lab.say("tables")
    lab.say("list", RANGES[0])
    lab.say("stage", RANGES[0])


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        ("Stumbles", ["batch_0.parquet", "brokenlab", "KeyError", "voltage"]),
        ("Forgets", ["batch_0.parquet", "brokenlab", "station"]),
    ],
)
def test_an_exception_of_a_reader_names_file_and_package(begin, reader, words):
    lab = begin(changed(HITS, source__reader=f"brokenlab.reading:{reader}"))
    stage(lab)
    done = lab.crpipe("split", RANGES[0])
    assert done.returncode in (66, 70)
    assert not [word for word in words if word not in one_line(done.stderr)], done.stderr


def test_an_exception_of_a_simulator_names_file_and_package(begin):
    settings = changed(TILES, source__simulator="brokenlab.simulation:FallsSilent")
    lab = begin(settings)
    lab.say("list", RANGES[0])
    done = lab.crpipe("stage", RANGES[0])
    assert done.returncode == 70
    said = one_line(done.stderr)
    assert not [word for word in ("brokenlab", "ZeroDivisionError: no beam") if word not in said]
    assert re.search(r"tiles_\d", said)  # files are made at the same time: any may be the first to fail


@pytest.mark.parametrize(
    ("workload", "verb", "words"),
    [
        ("CollateFails", "train", ["CollateFails", "IndexError: detector 144", "brokenlab/model.py"]),
        ("ScoreFails", "evaluate", ["ScoreFails", "KeyError: 'charge_pe'", "brokenlab/model.py"]),
    ],
)
def test_an_exception_of_a_workload_names_it(split, tmp_path, workload, verb, words):
    lab = split.copy(tmp_path / "campaign")
    lab.configure(changed(HITS, train__workload=f"brokenlab.model:{workload}"))
    if verb == "evaluate":
        lab.say("train", RANGES[0])
    done = lab.crpipe(verb, RANGES[0])
    assert done.returncode == 70
    assert not [word for word in words if word not in one_line(done.stderr)], done.stderr


# --- tables ----------------------------------------------------------------------------------------------


def test_a_missing_table_is_named(begin):
    lab = begin(HITS)
    (lab.folder / "raw" / "geometry.csv").unlink()
    done = lab.crpipe("tables")
    assert done.returncode == 66
    said = one_line(done.stderr)
    assert "geometry" in said
    assert "geometry.csv" in said
    done = lab.snakemake("all", check=False)
    assert done.returncode != 0
    assert "geometry.csv" in done.stdout
    assert not (lab.results / "shards").exists()


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


def test_a_damaged_copy_of_a_table_is_refused(split, tmp_path):
    lab = split.copy(tmp_path / "campaign")
    record = json.loads((lab.results / "tables.json").read_text())
    copy = lab.results / record["geometry"]["path"]
    copy.chmod(0o644)
    copy.write_text(copy.read_text()[:-9])
    done = lab.crpipe("train", RANGES[0])
    assert done.returncode == 65
    assert copy.name in one_line(done.stderr)


def test_another_table_is_another_campaign(split, tmp_path):
    """A geometry of another path and content is a changed key."""
    lab = split.copy(tmp_path / "campaign")
    text = (lab.folder / "raw" / "geometry.csv").read_text()
    (lab.folder / "raw" / "new.csv").write_text(text.replace("-44.0", "-45.0"))
    lab.configure(changed(HITS, source__tables={**HITS["source"]["tables"], "geometry": "raw/new.csv"}))
    done = lab.crpipe("split", RANGES[0])
    assert done.returncode == 2
    assert "source.tables" in done.stderr
    done = lab.snakemake("all", check=False)
    assert done.returncode != 0
    assert "source.tables" in done.stdout


# --- manifests and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["foreign", "missing", "no layout"])
def test_a_manifest_without_or_with_a_foreign_layout_is_refused(split, tmp_path, damage):
    lab = split.copy(tmp_path / "campaign")
    path = lab.results / "shards" / RANGES[0] / "manifest.json"
    manifest = json.loads(path.read_text())
    if damage == "foreign":
        manifest["layout"] = BUNDLES.describe()
    elif damage == "missing":
        del manifest["layout"]
    else:
        manifest["layout"] = "bundles"
    path.write_text(json.dumps(manifest))
    done = lab.crpipe("train", RANGES[0])
    assert done.returncode == 65
    said = one_line(done.stderr)
    assert str(path.relative_to(lab.folder)) in said or str(path.parent.relative_to(lab.folder)) in said
    assert {"foreign": "no column primary_major_id"}.get(damage, "layout") in said
    assert "same command again" in said or "crpipe " in said


def test_a_file_of_another_schema_is_named(begin):
    lab = begin(HITS)
    pq.write_table(pa.table({"x": [1.0]}), lab.folder / "raw" / "batch_1.parquet")
    stage(lab)
    done = lab.crpipe("split", RANGES[0])
    assert done.returncode == 66
    assert "batch_1.parquet" in one_line(done.stderr)


def test_a_missing_number_is_named(begin):
    lab = begin(HITS)
    (lab.folder / "raw" / "batch_1.parquet").unlink()
    done = lab.crpipe("list", RANGES[0])
    assert done.returncode == 66
    assert "batch_1.parquet" in one_line(done.stderr)


def test_events_of_another_size_than_the_fixed_one_are_refused(begin):
    lab = begin(changed(TILES, source__reader="brokenlab.reading:LosesTiles"))
    stage(lab)
    done = lab.crpipe("split", RANGES[0])
    assert done.returncode in (65, 66)
    said = one_line(done.stderr)
    assert "64" in said
    assert "tiles_0.parquet" in said


# --- numbers of files ------------------------------------------------------------------------------------


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
