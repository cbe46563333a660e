"""All benchmarks by name: where their function is, what it measures, its peers, and its smallest form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: a function of a ``Run`` whose keyword arguments are the options.

    small: options of the quickest form, which shows that it works. comparison: options with which
    ``python -m benchmarks all`` runs it. needs_peer: without a peer it compares nothing. minutes: ``all``
    stops it after twice as long, the checklist for a GPU then. programs, needs: what has to be installed,
    modules by name. least: seconds without which it is not started.
    """

    function: str
    measures: str
    peers: Sequence[str] = ()
    small: Mapping[str, Any] = field(default_factory=dict)
    comparison: Mapping[str, Any] | None = None
    needs_peer: bool = False
    programs: Sequence[str] = ()
    needs: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    minutes: float = 3.0
    least: float = 20.0


def _entry(place: str, measures: str, *peers: str, small: dict[str, Any], **more: Any) -> Benchmark:
    return Benchmark(f"benchmarks.{place}", measures, peers, small, **more)


BENCHMARKS = {
    "training": _entry(
        "muons.training:training",
        "a training step of MuonGan, and its share of what the processor can do",
        "cr_muons",
        small={"rounds": 1, "scale": 0.01, "threads": 1},
        comparison={"rounds": 5, "threads": 2},
        needs_peer=True,
    ),
    "loader": _entry(
        "muons.loader:loader",
        "batches of muon bundles from the loader and from other readers",
        "cr_muons",
        small={"rounds": 1, "events": 20_000, "few": 5_000},
        comparison={"rounds": 5, "events": 1_000_000, "few": 20_000},
    ),
    "scan": _entry(
        "muons.raw:scan",
        "scanning and splitting raw files, beside polars, duckdb and pyarrow",
        small={"rounds": 1, "files": 2},
        comparison={"rounds": 5, "files": 30},
    ),
    "direction": _entry(
        "direction.benchmark:direction",
        "directions of neutrinos: loading and a training step",
        "iceaggr",
        small={"rounds": 1, "events": 400, "batch": 32},
        comparison={"rounds": 5, "events": 10_000},
        needs_peer=True,
        minutes=4,
    ),
    "xec": _entry(
        "xec.benchmark:xec",
        "gammas in xenon: loading and a training step",
        "xec-ml-wl",
        small={"rounds": 1, "events": 200, "file_events": 100, "batches": [64], "step_batches": [8, 2]},
        comparison={"rounds": 5, "events": 4_000, "batches": [1024]},
        needs_peer=True,
        minutes=4,
    ),
    "staging": _entry(
        "staging.benchmark:staging",
        "copying files from a federation on loopback, beside curl, pelicanfs and a loop",
        small={"rounds": 1, "sets": ["small"], "divide": 20},
        comparison={"rounds": 5},
        programs=("xrootd", "curl"),
        minutes=4,
    ),
    "small": _entry(
        "small:small",
        "a small campaign from raw files to the report, beside a plain script",
        small={"rounds": 1},
        minutes=8,
    ),
    "planning": _entry(
        "workflow.startup:planning",
        "a dry run of the workflow, beside a bare one",
        small={"rounds": 1, "ranges": [5]},
        comparison={"rounds": 5, "ranges": [100]},
    ),
    "verbs": _entry(
        "muons.verbs:verbs",
        "evaluate, predict and generate: speed and memory",
        "cr_muons",
        small={"rounds": 1, "files": 28, "size": 2000},
        comparison={"rounds": 5, "only": ["generate", "predict"]},
        minutes=6,
    ),
    "check": _entry(
        "muons.check:check",
        "crpipe check of shards, beside sha256 of the same files",
        small={"rounds": 1, "files": 2},
        comparison={"rounds": 5, "files": 30},
    ),
    "against": _entry(
        "against:against",
        "split, loader, staging and training step, beside another commit of crpipe",
        "before",
        small={"rounds": 1, "only": ["staging"]},
        needs_peer=True,
    ),
    "split": _entry(
        "muons.split:split",
        "the split of ranges of 0.25 to 10 GB",
        "before",
        small={"rounds": 1, "sizes": [0.005]},
    ),
    "start": _entry(
        "workflow.startup:start",
        "the start of crpipe's commands; status of 100 ranges",
        small={"rounds": 1, "ranges": 2},
    ),
    "overhead": _entry(
        "workflow.startup:overhead",
        "seconds of a further range beside the work of its verbs",
        small={"rounds": 1},
    ),
    "packs": _entry(
        "workflow.startup:packs",
        "what a link in a pack takes beside its training: to pack, start and unpack it",
        small={"rounds": 1},
    ),
    "slurm": _entry(
        "workflow.slurm:slurm",
        "seconds of a job on Slurm beside its work",
        small={"rounds": 1, "ranges": 1},
        programs=("slurmctld", "slurmd"),
    ),
    "physics": _entry(
        "muons.physics:physics",
        "how good bundles are after a given time of training",
        "cr_muons",
        small={"budget": 2.0, "rows": 20_000, "validation": 8_000},
    ),
}
SMALL = {"device": "cpu", "small": True}
_CHECKLIST = {
    "basics": {
        "gpu-device": ("basics:device", "bandwidth, matrix products, the cost of a launch", 1),
    },
    "throughput": {
        "gpu-steps": ("throughput:steps", "events/s of the step in three precisions", 2),
        "gpu-loader": ("throughput:loader", "how busy the GPU is with the loader; launches, waiting", 3),
        "gpu-determinism": (
            "compiling:determinism",
            "whether two runs, and a resumed one, are bit-identical",
            1,
        ),
        "gpu-compile": ("compiling:compiled", "torch.compile beside eager steps, and its losses", 3.6),
    },
    "memory": {
        "gpu-expandable": ("memory:varying", "memory of 5,000 steps, expandable segments", 2.8),
        "gpu-fixed": ("memory:varying", "memory of 5,000 steps, fixed segments", 2.8),
    },
    "models": {
        "gpu-direction": ("models:direction", "events/s of direction's step in two sizes", 2.4),
        "gpu-xec": ("models:xec", "events/s and memory of xec's step", 2),
        "gpu-physics": ("models:physics", "the physics of MuonGan after the minutes that are left", 9.5),
    },
}
_MORE: dict[str, dict[str, Any]] = {
    "gpu-steps": {"peers": ("cr_muons",)},
    # cuBLAS asks for it where runs have to repeat
    "gpu-determinism": {"environment": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}},
    "gpu-expandable": {"environment": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}},
    "gpu-fixed": {"environment": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}},
    "gpu-direction": {"peers": ("iceaggr",)},
    "gpu-xec": {"peers": ("xec-ml-wl",), "needs": ("uproot",)},
    "gpu-physics": {"needs": ("sklearn",), "least": 60.0},
}
# The checklist for a GPU: parts of at most ten minutes.
PARTS = {part: tuple(points) for part, points in _CHECKLIST.items()}
for _points in _CHECKLIST.values():
    for _name, (_place, _measures, _minutes) in _points.items():
        _more = {"small": SMALL, "minutes": _minutes} | _MORE.get(_name, {})
        BENCHMARKS[_name] = Benchmark(f"benchmarks.gpu.{_place}", _measures, **_more)
