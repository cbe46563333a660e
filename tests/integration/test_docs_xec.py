"""The files and commands of docs/xec.md, in their order, on small simulated files."""

import csv
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot

from liquido_files import make_liquido, write_liquido
from runs import REPOSITORY, Campaign, follow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = (REPOSITORY / "docs" / "xec.md").read_text()
BLOCKS = re.findall(r"```(yaml|python|bash)\n(.*?)```", PAGE, re.DOTALL)
LINK = "0000001-0000004"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A clone in which every file of the page was written and every command ran."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("xec") / "campaign")
    (campaign.folder / "liquido").mkdir()
    write_liquido(campaign.folder / "liquido" / "electrons.h5", *make_liquido([40, 300, 25] * 20))
    follow(BLOCKS, campaign.folder)
    return campaign.folder


def read_json(path):
    return json.loads(path.read_text())


def test_blocks_that_do_not_run_here_say_why():
    left_out = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert left_out
    assert all("CI runs it by itself" in block or "2026-" in block for block in left_out)


def test_the_page_lists_the_branches_that_the_reader_looks_for():
    from crpipe.workloads.xec.reading.options import RootBranches

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`\w+`(?:, `\w+`)*) \|", PAGE, re.MULTILINE)
    shown = {}
    for options, branches in rows:
        names = [re.findall(r"`(\w+)`", each) for each in (options, branches)]
        shown |= dict(zip(*names, strict=True))
    assert shown == RootBranches().model_dump()


def test_the_fiducial_cut_is_in_the_ledger_and_a_run_is_in_one_part(campaign):
    ledgers = [read_json(path) for path in (campaign / "results/gammas/ledgers").glob("*.json")]
    assert sum(each["events"]["listed"] for each in ledgers) == 480
    rejected = [row for each in ledgers for row in each["rejected"]]
    assert 20 < len(rejected) == sum(each["events"]["rejected"] for each in ledgers)
    assert {re.match(r"[uvw]_cm", row["reason"])[0] for row in rejected} <= {"u_cm", "v_cm", "w_cm"}
    runs = {
        part: {
            run
            for path in (campaign / "results/gammas/shards").glob(f"*/{part}-*.events.parquet")
            for run in pq.read_table(path)["run"].to_pylist()
        }
        for part in ("train", "validation")
    }
    assert runs == {"train": {1, 2, 3}, "validation": {4}}


def test_the_evaluation_has_the_numbers_and_figures_of_the_page(campaign):
    metrics = read_json(next((campaign / "runs/gammas/evaluation").glob("*/metrics.json")))
    section = PAGE.partition("## How good it is\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    shown = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"gaussian_nll"}
    of_the_angle = {
        "theta_resolution",
        "phi_resolution",
        "opening_angle",
    }  # not trained here
    assert {"energy_resolution", "energy_pull"} < shown - of_the_angle <= {*metrics["values"]}
    assert metrics["baseline"]["energy_resolution"] > 0
    made = {path.stem for path in (campaign / "runs/gammas/figures/evaluation").glob("*.svg")}
    lines = re.findall(r"^\* (\*\*.*?):", PAGE, re.MULTILINE)
    named = {name for line in lines for name in re.findall(r"\*\*(\w+)\*\*", line)}
    assert made == named - {"theta", "phi"}
    assert {*re.findall(r"figures/xec-(\w+)\.svg", PAGE)} <= made


def test_the_regressor_starts_from_the_autoencoder(campaign):
    found = read_json(campaign / "runs/pretrained/init_from.json")
    assert found["loaded"]
    assert all(name.startswith("encoder.") for name in found["loaded"])
    assert all(name.startswith(("heads.", "scale")) for name in found["missing"])


def test_the_inpainter_lists_each_found_sensor_once(campaign):
    with uproot.open(campaign / "found.root") as file:
        found = file["predictions"].arrays(library="np")
    named = {name for name in re.findall(r"`(\w+)`", PAGE) if name.endswith(("npho", "_time", "_number"))}
    assert named - {"npho", "relative_time"} <= {*found}
    keys = np.stack([found["event_number"], found["sensor_id"]])
    assert len(np.unique(keys, axis=1).T) == keys.shape[1] > 120 * 200
    dead = found["mask_type"] == 1
    assert np.isnan(found["truth_npho"][dead]).all()
    assert np.isfinite(found["pred_npho"]).all()


def test_each_measured_event_is_predicted_once(campaign):
    table = pq.read_table(campaign / "measured.parquet")
    assert table["event"].to_pylist() == list(range(120))
    with (campaign / "measured.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [*rows[0]] == ["run", "event", "energy_gev", "energy_gev_sigma"]
    assert np.allclose([float(row["energy_gev"]) for row in rows], table["energy_gev"].to_numpy())


def test_ten_runs_share_the_shards(campaign):
    assert len(list(campaign.glob(f"runs/rate-*/ranges/{LINK}.json"))) == 10
    assert len(list(campaign.glob(f"runs/rate-*/evaluation/{LINK}/metrics.json"))) == 2
    assert (campaign / "rates.svg").stat().st_size > 0


def test_the_files_of_liquido_are_split(campaign):
    ledger = next((campaign / "results/liquido/ledgers").glob("*.json"))
    assert read_json(ledger)["events"]["listed"] == 60
    assert read_json(ledger)["items"]["listed"] == 20 * 365
