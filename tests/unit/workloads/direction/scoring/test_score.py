import subprocess
import sys

from crpipe.workloads.direction.scoring import metrics
from crpipe.workloads.direction.scoring.score import score


def test_a_prediction_with_a_line_fit_beside_it_has_figures(judged, tmp_path):
    truth, prediction = judged(100)
    found = score(truth, prediction, tmp_path)
    assert found == metrics.measure(truth.columns, prediction)
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "angle.svg",
        "bias.svg",
        "dependence.svg",
        "kappa.svg",
    }


def test_the_line_fit_itself_has_numbers_and_no_figures(judged, tmp_path):
    truth, prediction = judged(100)
    fit = {name: prediction[f"line_fit_{name}"] for name in ("azimuth", "zenith")}
    found = score(truth, fit | {"doms": prediction["doms"]}, tmp_path)
    assert found["angle_median_deg"] > score(truth, prediction, tmp_path / "network")["angle_median_deg"]
    assert not list(tmp_path.glob("*.svg"))


def test_importing_it_does_not_load_matplotlib():
    code = "import sys, crpipe.workloads.direction.scoring.score; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
