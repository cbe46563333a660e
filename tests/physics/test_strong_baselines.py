"""At equal CPU time, nothing that a user would try in an afternoon is better than crpipe: four detectors.

Half an hour; `make test-physics`. docs/direction.md and docs/xec.md have the numbers.
"""

import pytest
import strong_baselines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
FIRST = {"direction": "mean angle, °", "xec": "energy, %"}
WORSE = {"direction": ("its regression", "boosted trees"), "xec": ("boosted trees", "plain DeepSet")}


@pytest.mark.parametrize("name", strong_baselines.DETECTORS)
def test_nothing_simple_is_better(name, tmp_path):
    """In the number that the page leads with, beyond two errors of the paired difference."""
    lines, differences = strong_baselines.measure(name, tmp_path, 120, 4000)
    print(*lines, sep="\n")  # noqa: T201 - they are worth knowing where the test passes, too
    kind = strong_baselines.DETECTORS[name][0]
    for method, (_, difference, error) in differences[FIRST[kind]].items():
        assert difference < (-2 if method in WORSE[kind] else 2) * error, method
