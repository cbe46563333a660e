"""The examples: two packages from outside, written with crpipe.author, each through the whole pipeline."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from outside.lab import Lab, changed
from outside.test_contract import SUITE
from runs import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EXAMPLES = REPOSITORY / "examples"
MOST_LINES = 150
SMALL = {
    "jets": {"train__passes_per_link": 4},
    "calo": {"train__passes_per_link": 5, "evaluate__fresh_groups": 100},
}


def begin(name, folder, **keys):
    settings = yaml.safe_load((EXAMPLES / name / f"{name}.yaml").read_text())
    return Lab.begin(folder, changed(settings, **SMALL[name], **keys), EXAMPLES)


@pytest.fixture(scope="module")
def jets(tmp_path_factory):
    lab = begin("jets", tmp_path_factory.mktemp("jets") / "campaign")
    lab.python("-m", "jets.data", "data", "parquet")
    lab.snakemake("all")
    return lab


@pytest.fixture(scope="module")
def calo(tmp_path_factory):
    lab = begin("calo", tmp_path_factory.mktemp("calo") / "campaign")
    lab.snakemake("all")
    return lab


def numbers(lab, run):
    (path,) = (lab.folder / "runs" / run / "evaluation").glob("*/metrics.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", ["jets", "calo"])
def test_an_example_is_short(name):
    """Reader, simulator, model, options and settings, without blank lines and data to try it with."""
    paths = [path for path in sorted((EXAMPLES / name).iterdir()) if path.suffix in (".py", ".yaml")]
    lines = [line for path in paths if path.stem != "data" for line in path.read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) <= MOST_LINES


def test_jets_are_classified(jets):
    found = numbers(jets, "jets")
    assert found["values"]["auc"] > 0.9
    assert found["values"]["accuracy"] > found["baseline"]["accuracy"] > 0.5
    for name in ("accuracy", "cross_entropy", "auc"):
        assert 0 < found["values"][f"{name}_error"] < 0.1
    predicted = pq.read_table(next(jets.folder.glob("runs/jets/evaluation/*/predictions.parquet")))
    sums = sum(predicted[f"p_{number}"].to_numpy() for number in range(3))
    assert np.allclose(sums, 1, atol=1e-5)
    assert next(jets.folder.glob("runs/jets/evaluation/*/top.svg")).stat().st_size > 1000


def test_another_format_gives_the_same_shards(jets, tmp_path):
    other = begin(
        "jets", tmp_path / "npz", source__uri="data/{range}/*.npz", source__reader="jets.reading:NpzJets"
    )
    other.python("-m", "jets.data", "data", "npz")
    other.snakemake("outliers_consolidated")
    shards = {
        lab.folder: {
            path.relative_to(lab.folder): path.read_bytes()
            for path in lab.folder.glob("results/shards/*/*-*.parquet")
        }
        for lab in (jets, other)
    }
    assert len(shards[jets.folder]) > 4
    assert shards[jets.folder] == shards[other.folder]


def test_a_scan_ranks_runs_on_the_same_data(jets, tmp_path):
    lab = jets.copy(tmp_path / "scan")
    before = (lab.results / "journal.jsonl").read_bytes()
    (lab.folder / "scan.yaml").write_text("grid: {model.hidden: [1, 16], train.passes_per_link: [1]}")
    lines = lab.say("scan", "scan.yaml", "evaluation", "--figure", "scan.svg", "--by", "auc").splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("ranked by"))
    assert lines[first] == "ranked by mean AUC of one class against the others, higher is better, ideal 1"
    names = ["jets-hidden-16_passes_per_link-1", "jets-hidden-1_passes_per_link-1"]
    assert [line.split()[1] for line in lines[first + 2 : first + 4]] == names
    assert lines[first + 1].split()[-2:] == ["links", "model.hidden"]
    assert (lab.results / "journal.jsonl").read_bytes() == before
    said = lab.say("compare", "jets", *names, "--by", "auc")
    assert said.splitlines()[2].split()[:2] == ["1", "jets"]
    page = lab.say("report", "--with", names[0], "--with", names[1]).strip()
    assert f"<h2>Beside {names[0]}, {names[1]}</h2>" in (lab.folder / page).read_text()


def test_the_exported_classifier_runs_without_crpipe(jets, tmp_path):
    jets.say("export", "--checkpoint", "latest", "--out", str(tmp_path / "export"))
    code = (
        "import onnxruntime, numpy as np\n"
        "session = onnxruntime.InferenceSession('model.onnx')\n"
        "inputs = {'particles': np.ones((3, 3), np.float32), 'jet': np.array([0, 1, 1]),"
        " 'jet_pt': np.array([400, 500], np.float32)}\n"
        "p, = session.run(None, inputs)\n"
        "assert p.shape == (2, 3) and np.allclose(p.sum(axis=1), 1, atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "export", check=True)
    card = (tmp_path / "export" / "MODEL_CARD.md").read_text()
    assert "[p] = session.run(None, {'particles': …, 'jet': …, 'jet_pt': …})" in card
    assert "package jets" in card


def test_showers_are_generated_and_judged_beside_a_second_simulation(calo):
    found = numbers(calo, "calo")
    assert (found["part"], found["groups"]) == ("fresh", 100)
    assert found["again"]["auc"] == pytest.approx(0.5, abs=4 * found["again"]["auc_error"])
    assert 0.5 < found["values"]["auc"] <= 1
    assert abs(found["values"]["response"]) < 0.5
    rows = calo.folder / "asked.csv"
    rows.write_text("shower,energy_gev\n1,10\n2,50\n")
    calo.say(
        "generate", "--checkpoint", "latest", "--in", str(rows), "--out", str(calo.folder / "made.parquet")
    )
    made = pq.read_table(calo.folder / "made.parquet")
    assert made.num_rows == 2


def test_the_tests_of_the_contract_pass(calo):
    done = calo.python(*SUITE, "--crpipe-config", "crpipe.yaml")
    assert done.returncode == 0, done.stdout[-3000:]
