"""What jobs ask a cluster for."""

import pytest

from crpipe.workflow.rules import gpu_request, node_request, time_limit


@pytest.mark.parametrize(
    ("count", "kind", "expected"),
    [(0, "", ""), (0, "a100", ""), (1, "", "gpu:1"), (4, "a100", "gpu:a100:4")],
)
def test_gpus_are_asked_for_by_type_where_one_is_named(count, kind, expected):
    assert gpu_request(count, kind) == expected


def test_one_node_asks_for_nothing_and_several_for_a_torchrun_each():
    assert node_request(1) == {}
    assert node_request(3) == {"mpi": "srun", "nodes": 3, "tasks": 3, "tasks_per_gpu": 0}


@pytest.mark.parametrize(("runtime", "minutes"), [(10, "9"), (50, "45"), (1440, "1435")])
def test_a_job_stops_five_minutes_early_or_after_nine_tenths_of_a_short_time(runtime, minutes):
    assert time_limit(runtime) == f"--max-minutes {minutes}"
