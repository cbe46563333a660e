import subprocess
import sys

import numpy as np

from crpipe.workloads.xec.layout import TRUTHS
from crpipe.workloads.xec.scoring import curve, metrics
from crpipe.workloads.xec.scoring.baseline import simple_reconstruction
from crpipe.workloads.xec.scoring.score import score
from unrendered import unrendered
from xenon_toy import make_predictions, make_truth


def test_a_prediction_with_the_baseline_beside_it_has_figures(tmp_path):
    truth = make_truth(500)
    prediction = make_predictions(truth)
    with unrendered():
        found = score(truth, prediction, tmp_path, ["energy", "position"])
    assert found == metrics.measure(truth.columns, prediction, ["energy", "position"]) | curve.measure(
        truth.columns, prediction
    )
    assert {"stochastic_term", "constant_term_error"} <= found.keys()
    assert {path.stem for path in tmp_path.iterdir()} == {
        *("residuals", "energy", "u", "v", "w", "energy_curve", "calibration")
    }


def test_the_baseline_itself_has_numbers_and_no_figures(gammas, places, tmp_path):
    found = score(gammas, simple_reconstruction(gammas, places), tmp_path, TRUTHS)
    assert not list(tmp_path.iterdir())
    assert found["energy_resolution"] < 20
    assert found["distance_resolution"] < 2
    assert found["time_resolution"] < 200
    assert "theta_resolution" not in found
    assert np.isfinite(list(found.values())).all()


def test_without_the_energy_there_is_no_curve(tmp_path):
    truth = make_truth(500)
    with unrendered():
        assert "stochastic_term" not in score(truth, make_predictions(truth), tmp_path, ["position"])


def test_importing_it_does_not_load_matplotlib():
    code = "import sys, crpipe.workloads.xec.scoring.score; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
