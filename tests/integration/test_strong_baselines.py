"""The comparison of docs/direction.md and docs/xec.md, on a few events: all differences are there."""

import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "physics"))

import strong_baselines


def test_a_small_comparison_has_a_table(tmp_path):
    lines, differences = strong_baselines.measure("other telescope", tmp_path, 1, 120, files=2)
    assert sum(line.startswith("|") for line in lines) == 2 + 4 == 2 + len(differences)
    for each in differences.values():
        assert {*each} == {*strong_baselines.METHODS} - {"crpipe"}
        assert all(math.isfinite(number) for pair in each.values() for number in pair)
