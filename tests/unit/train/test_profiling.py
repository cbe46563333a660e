"""`crpipe train --profile N` names the hot operators and leaves a trace."""

import json

import torch

from crpipe.train.meter import WARM_UP_STEPS, Profiler


def test_reports_once_with_operators_and_a_trace(tmp_path):
    told = []
    profiler = Profiler(2, tmp_path / "trace.json", told.append)
    for _ in range(WARM_UP_STEPS + 6):
        torch.ones(8, 8) @ torch.ones(8, 8)
        profiler.step()
    assert len(told) == 2
    assert "aten::mm" in told[0]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
