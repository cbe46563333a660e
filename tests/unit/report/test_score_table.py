"""TensorBoard's table shows declared metrics first, with their titles, then the rest."""

from crpipe.events.layout import Metric
from crpipe.report.evaluations import score_table


def test_declared_metrics_come_first_with_title_unit_and_error():
    scores = {
        "values": {"own": 2.0, "radius": 0.5, "radius_error": 0.01},
        "baseline": {"radius": 1.5},
    }
    assert score_table([Metric("radius", "mean radius", unit="m"), Metric("none", "none")], scores) == (
        "| metric | model | baseline |\n"
        "|---|---|---|\n"
        "| mean radius, in m | 0.5 ± 0.01 | 1.5 |\n"
        "| own | 2 |  |"
    )
