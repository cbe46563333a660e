"""Two workloads from outside crpipe, each through the whole pipeline: ragged hits, and 64 tiles an event.

Nothing here imports the packages: only the processes of a campaign find them, through PYTHONPATH.
"""

import json
import re
from importlib.util import find_spec

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from crpipe.core.files import read_json
from outside.lab import HITS, RANGES, TILES, WORDS_OF_OTHERS, Lab
from runs import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ITEM = {"hits": "hits", "tiles": "tiles"}
LINKS = {"hits": (*RANGES, "outliers"), "tiles": RANGES}  # events of one size have no outliers
KEY = {"hits": ["event_id"], "tiles": ["run", "event"]}
PREDICTED = {"hits": ["energy_mev", "x_m", "y_m"], "tiles": ["energy_mev"]}
METRICS = {"hits": ["distance_median", "energy_bias", "energy_correlation"], "tiles": []}
RAW = {"hits": "raw/batch_1.parquet", "tiles": "made/tiles_1.parquet"}


@pytest.fixture(scope="module")
def hits(tmp_path_factory):
    """The finished campaign of hitlab."""
    lab = Lab.begin(tmp_path_factory.mktemp("hits") / "campaign", HITS)
    lab.snakemake("all")
    return lab


@pytest.fixture(scope="module")
def tiles(tmp_path_factory):
    """The finished campaign of tilelab."""
    lab = Lab.begin(tmp_path_factory.mktemp("tiles") / "campaign", TILES)
    lab.snakemake("all")
    return lab


@pytest.fixture(params=["hits", "tiles"])
def finished(request):
    """Each of the two finished campaigns."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def kind(finished):
    """Which of the two campaigns this is."""
    return "hits" if (finished.folder / "raw").exists() else "tiles"


def read_csv(path):
    """Read a CSV file; pyarrow alone would read numbers above 2**63 as floats."""
    whole = pyarrow.csv.ConvertOptions(column_types={"event_id": "uint64"})
    return pyarrow.csv.read_csv(path, convert_options=whole)


def keys_of(table, kind):
    """Name the events of a table by their key columns."""
    return list(zip(*(table[name].to_pylist() for name in KEY[kind]), strict=True))


def last_link(campaign, kind):
    return campaign.run / "evaluation" / LINKS[kind][-1]


def test_the_packages_are_outside():
    assert find_spec("hitlab") is None
    assert find_spec("tilelab") is None


def test_one_command_makes_everything(finished, kind):
    receipts = {path.stem for path in (finished.run / "ranges").glob("*.json")}
    assert receipts == set(LINKS[kind])
    for name in RANGES:
        ledger = read_json(finished.results / "ledgers" / f"{name}.json")
        assert ledger["balanced"]
        assert ledger["events"]["listed"] == {"hits": 300, "tiles": 120}[kind]
        assert ledger["items"]["listed"] > 0
        shards = {path.name.split(".")[1] for path in (finished.results / "shards" / name).glob("*.parquet")}
        assert shards == {"events", ITEM[kind]}
    assert read_json(finished.results / "layout.json")["item"] == ITEM[kind]
    assert not list(finished.folder.rglob("*.part"))


def test_every_bulk_event_is_trained_on(finished, kind):
    ledgers = [read_json(finished.results / "ledgers" / f"{name}.json") for name in RANGES]
    receipt = read_json(finished.run / "ranges" / f"{LINKS[kind][-1]}.json")
    for unit in ("events", "items"):
        bulk, outliers = (sum(ledger[unit][name] for ledger in ledgers) for name in ("train", "outliers"))
        assert bool(outliers) == (kind == "hits")
        assert receipt[unit] == 6 * bulk + outliers


def test_the_same_command_again_has_nothing_to_do(finished):
    assert "Nothing to be done" in finished.snakemake("all").stdout


def test_weights_are_used_and_summed(tiles):
    """The ledger's sums are those of the shards; loss and score are weighted."""
    shards = [pq.read_table(path) for path in tiles.results.glob("shards/*/*.events.parquet")]
    keys = [key for part in shards for key in keys_of(part, "tiles")]
    rates, truth = (
        dict(zip(keys, [value for part in shards for value in part[name].to_pylist()], strict=True))
        for name in ("rate_hz", "energy_mev")
    )
    ledgers = [read_json(tiles.results / "ledgers" / f"{name}.json")["weights"] for name in RANGES]
    assert sum(ledger["listed"] for ledger in ledgers) == pytest.approx(sum(rates.values()), rel=1e-9)
    for part in ("train", "validation"):
        tables = [pq.read_table(path) for path in tiles.results.glob(f"shards/*/{part}-*.events.parquet")]
        sent = sum(sum(table["rate_hz"].to_pylist()) for table in tables)
        assert sum(ledger[part] for ledger in ledgers) == pytest.approx(sent, rel=1e-9)
    for text in (tiles.say("status"), tiles.say("summary")):
        assert re.search(r"weights +[0-9.e+]+ = train [0-9.e+]+ \+", text)
    lines = (tiles.run / "store" / RANGES[1] / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(row["fit/loss"] != row["fit/unweighted"] for row in rows)
    table = pq.read_table(last_link(tiles, "tiles") / "predictions.parquet")
    found = dict(zip(keys_of(table, "tiles"), table["energy_mev"].to_pylist(), strict=True))
    total = sum(rates[key] for key in found)
    mean = sum(rates[key] * (found[key] - truth[key]) for key in found) / total
    values = read_json(last_link(tiles, "tiles") / "metrics.json")["values"]
    assert values["mean_error_mev"] == pytest.approx(mean, rel=1e-4, abs=1e-4)
    assert "sum of weights" in (tiles.run / "figures" / "multiplicity.svg").read_text()


# --- words -----------------------------------------------------------------------------------------------


def shown(campaign, tmp_path):
    """Collect everything that a person is shown: name -> text."""
    page = tmp_path / "page.html"
    texts = {verb: campaign.say(verb) for verb in ("plan", "summary", "status")}
    texts["status --all"] = campaign.say("status", "--all")
    texts["status --json"] = campaign.say("status", "--json")
    assert '"items"' in texts["status --json"]
    json.loads(texts["status --json"])
    campaign.say("status", "--html", str(page))
    texts["page"] = page.read_text()
    texts |= {path.name: path.read_text() for path in (campaign.run / "figures").rglob("*.svg")}
    return texts


def test_people_read_the_words_of_the_workload(finished, kind, tmp_path):
    texts = shown(finished, tmp_path)
    others = {name: WORDS_OF_OTHERS.findall(text) for name, text in texts.items()}
    assert not {name: words for name, words in others.items() if words}
    foreign = {"hits": "tiles", "tiles": "hits"}[kind]
    assert not [name for name, text in texts.items() if f" {foreign}" in text]
    for name in ("plan", "summary", "page", "multiplicity.svg"):
        assert ITEM[kind] in texts[name], name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hits", ["median distance to the truth", "correlation of the energies"]),  # declared, with titles
        ("tiles", ["spread_mev", "mean_error_mev"]),  # none is: all numbers are shown
    ],
)
def test_metrics_are_shown_by_their_titles_or_else_all_of_them(name, words, request):
    campaign = request.getfixturevalue(name)
    summary = " ".join(campaign.say("summary").replace("│", " ").split())
    assert all(word in summary for word in words)
    assert campaign.jobs("progress") == {"evaluate": len(LINKS[name]) - 1, "progress": 1}
    campaign.snakemake("progress")
    figure = (campaign.run / "figures" / "progress.svg").read_text()
    assert words[0] in figure
    assert f"links of the chain trained on, of {len(LINKS[name])}" in figure
    assert campaign.jobs("all") == {}


# --- evaluation and prediction ---------------------------------------------------------------------------


def test_metrics_say_what_they_are(finished, kind):
    found = read_json(last_link(finished, kind) / "metrics.json")
    assert [metric["name"] for metric in found["metrics"]] == METRICS[kind]
    assert found["events"] >= 50
    receipt = read_json(finished.run / "ranges" / f"{LINKS[kind][-1]}.json")
    assert found["step"] == receipt["step"]
    assert "again" not in found
    figures = {path.name for path in (finished.run / "figures" / "evaluation").glob("*.svg")}
    assert figures == {"hits": {"distance.svg"}, "tiles": set()}[kind]
    if kind == "hits":
        first = {"title": "median distance to the truth", "unit": "m", "better": "low", "ideal": 0.0}
        assert {"name": "distance_median", **first}.items() <= found["metrics"][0].items()
        assert list(found["values"])[:3] != []
        assert {*METRICS[kind], "distance_median_error", "events_without_hits"} <= {*found["values"]}
        assert {*METRICS[kind]} <= {*found["baseline"]}
    else:
        assert set(found["values"]) == {"mean_error_mev", "spread_mev"}
        assert "baseline" not in found


def test_every_validation_event_has_its_prediction(finished, kind):
    table = pq.read_table(last_link(finished, kind) / "predictions.parquet")
    assert len(table) == read_json(last_link(finished, kind) / "metrics.json")["events"]
    names = table.column_names
    assert {"source_file", "source_row"} <= {*names}
    assert names[-len(KEY[kind] + PREDICTED[kind]) :] == [*KEY[kind], *PREDICTED[kind]]
    keys = keys_of(table, kind)
    assert len(set(keys)) == len(keys)
    paths = [*finished.results.glob("shards/*/validation-*.events.parquet")]
    paths += finished.results.glob("outliers/*/validation_outliers-*.events.parquet")
    held = [pq.read_table(path) for path in paths]
    assert set(keys) <= {key for part in held for key in keys_of(part, kind)}
    if kind == "hits":
        assert str(table.schema.field("event_id").type) == "uint64"


def test_a_raw_file_is_predicted(finished, kind, tmp_path):
    raw = finished.folder / RAW[kind]
    if not raw.exists():
        finished.say("simulate", RANGES[0], "--out", str(raw.parent))
    ending = {"hits": "csv", "tiles": "parquet"}[kind]
    out = tmp_path / f"predicted.{ending}"
    receipt = finished.run / "ranges" / f"{LINKS[kind][-1]}.json"
    finished.say("predict", "--checkpoint", str(receipt), "--in", str(raw), "--out", str(out))
    table = read_csv(out) if ending == "csv" else pq.read_table(out)
    assert len(table) == {"hits": 150, "tiles": 60}[kind]
    assert {*KEY[kind], *PREDICTED[kind]} <= {*table.column_names}
    # What evaluation found for an event, prediction finds again.
    evaluated = pq.read_table(last_link(finished, kind) / "predictions.parquet")
    ours, theirs = (dict(zip(keys_of(one, kind), one.to_pylist(), strict=True)) for one in (table, evaluated))
    both = set(ours) & set(theirs)
    assert both
    for key in both:
        for name in PREDICTED[kind]:
            assert ours[key][name] == pytest.approx(theirs[key][name], rel=1e-4, abs=1e-4)


def test_a_checkpoint_is_exported_without_graphs(finished, kind, tmp_path):
    receipt = finished.run / "ranges" / f"{LINKS[kind][-1]}.json"
    finished.say("export", "--checkpoint", str(receipt), "--out", str(tmp_path / "export"))
    names = [
        path.relative_to(tmp_path / "export") for path in (tmp_path / "export").rglob("*") if path.is_file()
    ]
    assert names
    card = next(path for path in (tmp_path / "export").rglob("*.md")).read_text()
    assert ITEM[kind] in card
    assert not WORDS_OF_OTHERS.search(card)


# --- without the package, without the workload -----------------------------------------------------------

LOADS = """
import sys
from pathlib import Path
from crpipe.loading.loader import Loader
loader = Loader(Path(sys.argv[1]), "train", batch_events=32, seed=(1, 2), epochs=1)
print(sum(len(events) for events, _ in loader.batches()))
"""


def test_shards_are_readable_without_the_package(finished, kind):
    alone = {"PYTHONPATH": str(REPOSITORY / "src")}
    folder = finished.results / "shards" / RANGES[0]
    done = finished.python("-c", LOADS, str(folder), **alone)
    assert done.returncode == 0, done.stderr
    ledger = read_json(finished.results / "ledgers" / f"{RANGES[0]}.json")
    assert int(done.stdout) == ledger["events"]["train"]
    words = ["-m", "crpipe", "check", RANGES[0]]
    done = finished.python(*words, **alone)
    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout


def test_data_verbs_and_status_never_import_the_workload(finished, kind, tmp_path):
    """The modules of both workloads raise when these variables are set."""
    campaign = finished.untrained(tmp_path / "campaign", HITLAB_NO_MODEL="1", TILELAB_NO_MODEL="1")
    for words in (["status"], ["status", "--json"], ["check", RANGES[0]]):
        campaign.say(*words)
    refused = campaign.crpipe("train", RANGES[0])
    assert refused.returncode != 0
    assert "was imported" in refused.stderr
    for name in ("manifests", "shards", "outliers", "ledgers", "multiplicity"):
        (campaign.results / name).rename(tmp_path / name)
    for verb in ("list", "stage", "split"):
        for name in RANGES:
            campaign.say(verb, name)
    if kind == "hits":
        campaign.say("consolidate")


def test_who_has_not_the_package_sees_the_same(hits, tmp_path):
    campaign = hits.copy(tmp_path / "copy")
    alone = Lab(campaign.folder, {"PYTHONPATH": ""})
    for words in (("summary",), ("summary", "--json"), ("check",), ("compare", "first"), ("status", "--all")):
        with_it, without = (re.sub(r".* free\b", "", each.say(*words)) for each in (campaign, alone))
        assert with_it == without, words
    for words in (("report",), ("status", "--html", str(tmp_path / "status.html")), ("figures",)):
        alone.say(*words)
    assert "balance" in (campaign.run / "report.html").read_text()
    refused = alone.crpipe("train", RANGES[0])
    assert refused.returncode == 2
    assert "is its package installed" in refused.stderr
