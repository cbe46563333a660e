"""What a training job imports: neither matplotlib nor onnx, which are slow, and of which onnx is an extra."""

import subprocess
import sys

import pytest

WORKLOADS = [
    "muons:MuonGan",
    "muons:MuonFlow",
    "direction:DeepSet",
    "xec:Regressor",
    "xec:Inpainter",
]


@pytest.mark.parametrize("name", WORKLOADS)
def test_training_loads_neither_matplotlib_nor_onnx(name):
    module, _, workload = name.partition(":")
    code = (
        f"import sys; from crpipe.workloads.{module} import {workload}; "
        "sys.exit(repr({'matplotlib', 'onnx', 'sklearn'} & {*sys.modules} or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "''"
