"""What jobs ask a cluster for, beyond plain numbers of the configuration."""

from __future__ import annotations

from typing import Any

_MOST_SPARE_MINUTES = 5.0
_SHARE = 0.9


def gpu_request(count: int, kind: str = "") -> str:
    """Spell a request for GPUs on each node, such as ``gpu:a100:2``; "" for none."""
    return ":".join(["gpu", *([kind] if kind else []), str(count)]) if count else ""


def node_request(nodes: int) -> dict[str, Any]:
    """Give what a training job on several nodes asks for beside the rest: one torchrun on each."""
    return {"mpi": "srun", "nodes": nodes, "tasks": nodes, "tasks_per_gpu": 0} if nodes > 1 else {}


def time_limit(runtime_minutes: float) -> str:
    """Spell the option with which a job takes a snapshot and stops by itself before its run time ends."""
    return f"--max-minutes {max(_SHARE * runtime_minutes, runtime_minutes - _MOST_SPARE_MINUTES):g}"
