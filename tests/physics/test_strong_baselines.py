"""crpipe is at most 5 % worse than what a user would try in an afternoon, at equal CPU time: four detectors.

Half an hour; `make test-physics`. docs/direction.md and docs/xec.md have the numbers.
"""

import pytest
import strong_baselines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
FIRST = {"direction": "mean angle, °", "xec": "energy, %"}


@pytest.mark.parametrize("name", strong_baselines.DETECTORS)
def test_nothing_simple_is_better_by_a_twentieth(name, tmp_path):
    lines, differences = strong_baselines.measure(name, tmp_path, 120, 4000)
    print(*lines, sep="\n")  # noqa: T201 - they are worth knowing where the test passes, too
    for method, (value, difference, error) in differences[FIRST[strong_baselines.DETECTORS[name][0]]].items():
        assert difference - 2 * error < 0.05 * value, method
