"""What a training job imports: neither matplotlib nor onnx, which are slow, and of which onnx is an extra."""

import subprocess
import sys

CODE = """
import sys
from crpipe.workloads.direction import DeepSet
from crpipe.workloads.muons import MuonGan, MuonVae
from crpipe.workloads.xec import Inpainter, Regressor
sys.exit(repr({"matplotlib", "onnx", "sklearn"} & {*sys.modules} or ""))
"""


def test_training_loads_neither_matplotlib_nor_onnx():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "''"
