"""The files and commands of docs/xec.md, in their order, on small simulated files."""

import csv
import os
import re
import subprocess

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot

from crpipe.core.files import read_json
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from liquido_files import make_liquido, write_liquido
from outside.lab import Lab
from runs import BIN, REPOSITORY, Campaign, environment, follow

pytestmark = pytest.mark.timeout(1800)
PAGE = (REPOSITORY / "docs" / "xec.md").read_text()
BLOCKS = re.findall(r"```(yaml|python|bash)\n(.*?)```", PAGE, re.DOTALL)
LINK = "0000001-0000004"
EVENTS = 120  # of the measured file
INPAINTER = ("--config", "masked.yaml", "--config", "inpainter.yaml")
PREDICT = ("predict", "--checkpoint", "latest", "--in")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A clone in which every file of the page was written and every command ran."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("xec") / "campaign")
    (campaign.folder / "liquido").mkdir()
    write_liquido(campaign.folder / "liquido" / "electrons.h5", *make_liquido([40, 300, 25] * 20))
    follow(BLOCKS, campaign.folder)
    return campaign.folder


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


def test_the_evaluation_has_the_numbers_and_figures_of_the_page(campaign):
    metrics = read_json(next((campaign / "runs/gammas/evaluation").glob("*/metrics.json")))
    section = PAGE.partition("## How good it is\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    shown = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"gaussian_nll"}
    shown -= {"energy_coverage_68"} if metrics["groups"] < 20 else set()  # all of few are inside
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
    assert not any(name.startswith("encoder.") for name in found["missing"])


def test_the_inpainter_starts_from_the_autoencoder_and_is_judged_and_exported(campaign, tmp_path):
    begun_from = read_json(campaign / "runs/inpainter/init_from.json")
    assert any(name.startswith("encoder.") for name in begun_from["loaded"])
    assert begun_from["unexpected"] == []
    metrics = read_json(next((campaign / "runs/inpainter/evaluation").glob("*/metrics.json")))
    assert {"photons_mae", "neighbours_mae", "solid_angle_mae", "photons_mae_top"} <= {*metrics["values"]}
    Lab(campaign).say(*INPAINTER, "export", "--checkpoint", "latest", "--out", str(tmp_path / "model"))
    assert (tmp_path / "model" / "inpainter.onnx").exists()


def test_an_inpainter_is_judged_on_measured_events_face_by_face(campaign):
    (path,) = (campaign / "runs/measured/evaluation").glob("*/metrics.json")
    found = read_json(path)
    assert (found["part"], found["events"]) == ("validation", EVENTS)
    faces = ("inner", "outer", "us", "ds", "top", "bottom")
    values = found["values"]
    assert all(
        values[f"{method}_mae_{face}_error"] > 0 for method in ("photons", "neighbours") for face in faces
    )
    with (path.parent / "hidden_sensors.csv").open() as file:
        counts = {row["face"]: int(row["sensors"]) for row in csv.DictReader(file) if row["face"]}
    assert counts == {face: EVENTS * (10 if face == "inner" else 1) for face in faces}
    assert (path.parent / "found_sensors.svg").exists()


def test_dead_sensors_are_compared_in_one_command_by_number_depth_and_method(campaign):
    folder = campaign / "runs/gammas/evaluation" / LINK
    with (folder / "dead_sensors.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = {float(row["dead"]) for row in rows}
    assert {round(each - min(numbers)) for each in numbers} == {0, 50, 200}
    assert {row["curve"] for row in rows} == {"raw", "neighbours", "solid_angle", "inpainted"}
    assert {row["panel"].partition(", w")[2] for row in rows} == {" < 2 cm", " ≥ 2 cm"}
    values = read_json(folder / "metrics.json")["values"]
    assert values["energy_bias_dead_200_neighbours"] != values["energy_bias_dead_200_raw"]
    predicted = pq.read_table(folder / "predictions.parquet")
    assert not predicted["dead_200_inpainted_energy_gev"].equals(predicted["dead_200_raw_energy_gev"])


def test_the_inpainter_lists_each_found_sensor_once(campaign, tmp_path):
    with uproot.open(campaign / "found.root") as file:
        found = file["predictions"].arrays(library="np")
    named = {name for name in re.findall(r"`(\w+)`", PAGE) if name.endswith(("npho", "_time", "_number"))}
    assert named - {"npho", "relative_time"} <= {*found}
    keys = np.stack([found["event_number"], found["sensor_id"]])
    assert len(np.unique(keys, axis=1).T) == keys.shape[1]
    dead = found["mask_type"] == 1
    assert np.isnan(found["truth_npho"][dead]).all()
    assert np.isfinite(found["pred_npho"]).all()
    assert (found["mask_type"] == 0).sum() == pytest.approx(0.05 * 4760 * EVENTS, rel=0.05)
    Lab(campaign).say(*INPAINTER, *PREDICT, "measured.root", "--out", str(tmp_path / "found.parquet"))
    table = pq.read_table(tmp_path / "found.parquet").to_pydict()
    assert table.keys() == found.keys()
    for name in ("run_number", "sensor_id", "mask_type"):
        assert table[name] == found[name].tolist()


def peak_mb(campaign, raw, out):
    """Predict every sensor of a file, a row for each; return the largest memory that it took."""
    out.unlink(missing_ok=True)
    few = ("--set", "model.averages=false", "--set", "evaluate.batch_events=20")
    process = subprocess.Popen(
        [BIN / "crpipe", *INPAINTER, *few, *PREDICT, str(raw), "--out", str(out)],
        cwd=campaign,
        env=environment({}),
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss / 1024


def test_many_rows_take_no_more_memory_than_few(campaign, tmp_path):
    """The larger file has 137 MB more of items, and 549,000 more rows."""
    files, out = {}, tmp_path / "found.parquet"
    for number, events in ((6, 600), (7, 2400)):  # both more than a block of the reader
        files[events] = campaign / f"gammas_{number:06}.root"
        write_gammas(XenonDetectorOptions(events_per_file=events), 1, number, files[events])
    few = peak_mb(campaign, files[600], out)
    # Threads that wait for a busy core hold a block longer: the same file takes up to 40 MB more, or less.
    assert any(peak_mb(campaign, files[2400], out) - few < 50 for _ in range(2))
    assert pq.read_metadata(out).num_rows > 700_000


def test_each_measured_event_is_predicted_once(campaign):
    table = pq.read_table(campaign / "measured.parquet")
    assert table["event"].to_pylist() == list(range(120))
    with (campaign / "measured.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [*rows[0]] == ["run", "event", "energy_gev", "energy_gev_sigma"]
    assert np.allclose([float(row["energy_gev"]) for row in rows], table["energy_gev"].to_numpy())


def test_four_runs_at_the_same_time_share_the_shards_and_change_none(campaign):
    assert len(list(campaign.glob(f"runs/rate-*/ranges/{LINK}.json"))) == 4
    checkpoints = campaign.glob(f"runs/rate-*/store/{LINK}/checkpoint-*.pt")
    assert len({path.read_bytes() for path in checkpoints}) == 4
    assert len(list(campaign.glob(f"runs/rate-*/evaluation/{LINK}/metrics.json"))) == 2
    assert (campaign / "rates.svg").stat().st_size > 0
    Lab(campaign).say("--config", "gammas.yaml", "check")


def test_the_files_of_liquido_are_split(campaign):
    ledger = next((campaign / "results/liquido/ledgers").glob("*.json"))
    assert read_json(ledger)["events"]["listed"] == 60
    assert read_json(ledger)["items"]["listed"] == 20 * 365
