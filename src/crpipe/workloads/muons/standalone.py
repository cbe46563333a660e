"""Generate muon bundles in ice with an exported model: numpy and onnxruntime, nothing else.

    from sample import Sampler
    sampler = Sampler("path/to/the/export")
    multiplicity, muons = sampler.bundles([[1e6, 0.3, 1, 1950]], numpy.random.default_rng(1))

A primary is (energy_gev, zenith_rad, mass_number, depth_m), a muon is (energy_gev, x_m, y_m). The muons of
all primaries follow each other: the first ``multiplicity[0]`` rows are those of the first primary.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float32]
    Counts = NDArray[np.int64]

EVENTS_AT_ONCE = 4096
MUONS_AT_ONCE = 8192


class Sampler:
    """An exported generator; the same ``rng`` gives the same bundles."""

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        folder = Path(folder)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._law, self._muons = (
            onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
            for name in ("multiplicity.onnx", "muons.onnx")
        )
        self._noise: list[dict[str, Any]] = self.config["sampler"]["noise"]

    def bundles(
        self, primaries: ArrayLike, rng: np.random.Generator, multiplicity: ArrayLike | None = None
    ) -> tuple[Counts, Floats]:
        """Generate for primaries [N, 4]: multiplicity [N], drawn unless it is given, and muons [M, 3]."""
        given = np.asarray(primaries, np.float32).reshape(-1, 4)
        if self.outside(given).any():
            warnings.warn("some primaries lie outside of what the model was trained on", stacklevel=2)
        drawn = self.multiplicity(given, rng) if multiplicity is None else multiplicity
        counts = np.asarray(drawn, np.int64)
        pieces = [np.zeros((0, 3), np.float32)]
        for block in _blocks(counts):
            pieces += self._block(given[block], counts[block], rng)
        return counts, np.concatenate(pieces)

    def outside(self, primaries: ArrayLike) -> NDArray[np.bool_]:
        """Find the primaries outside the ranges of the training data, as far as they are known: [N]."""
        given = np.asarray(primaries, np.float32).reshape(-1, 4)
        beyond = np.zeros(len(given), bool)
        for column, name in enumerate(("energy_gev", "zenith_rad", "mass_number", "depth_m")):
            if name in self.config["sampler"]["limits"]:
                low, high = self.config["sampler"]["limits"][name]
                beyond |= ~((given[:, column] >= low) & (given[:, column] <= high))
        return beyond

    def multiplicity(self, primaries: ArrayLike, rng: np.random.Generator) -> Counts:
        """Draw from a mixture of negative binomials with extra zeros: [N]."""
        given = np.asarray(primaries, np.float32).reshape(-1, 4)
        log_weight, log_mean, log_shape, empty_logit = self._law.run(None, {"primaries": given})
        steps = np.cumsum(np.exp(log_weight), axis=1)
        chosen = (rng.random((len(steps), 1)) * steps[:, -1:] > steps).sum(axis=1)
        rows = np.arange(len(steps))
        mean, shape = np.exp(log_mean[rows, chosen]), np.exp(log_shape[rows, chosen])
        drawn = rng.poisson(rng.gamma(shape, mean / shape))
        empty = rng.random(len(drawn)) * (1.0 + np.exp(-empty_logit)) < 1.0
        return np.where(empty, 0, drawn)

    def muons(
        self, primaries: ArrayLike, multiplicity: ArrayLike, event: ArrayLike, noise: Mapping[str, ArrayLike]
    ) -> Floats:
        """Run the bare graph: ``event`` [M] is the event of each muon; all of the primaries must have muons.

        noise: what ``config["sampler"]["noise"]`` names, each [events or muons, columns].
        """
        inputs = {
            "primaries": np.asarray(primaries, np.float32).reshape(-1, 4),
            "multiplicity": np.asarray(multiplicity, np.int64),
            "event": np.asarray(event, np.int64),
            **{name: np.asarray(values, np.float32) for name, values in noise.items()},
        }
        muons: Floats = self._muons.run(None, inputs)[0]
        return muons

    def _block(self, primaries: Floats, multiplicity: Counts, rng: np.random.Generator) -> Iterator[Floats]:
        """Make the muons of some events, a piece at a time."""
        event = np.repeat(np.arange(len(multiplicity)), multiplicity)
        common = self._draw("events", len(multiplicity), rng)
        for low in range(0, len(event), MUONS_AT_ONCE):
            part = event[low : low + MUONS_AT_ONCE]
            some = slice(part[0], part[-1] + 1)
            noise = {name: values[some] for name, values in common.items()}
            noise |= self._draw("muons", len(part), rng)
            yield self.muons(primaries[some], multiplicity[some], part - part[0], noise)

    def _draw(self, rows: str, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        draw: dict[str, Any] = {"normal": rng.standard_normal, "uniform": rng.random}
        return {
            noise["name"]: draw[noise["law"]]((size, noise["columns"]), np.float32)
            for noise in self._noise
            if noise["rows"] == rows
        }


def _blocks(multiplicity: Counts) -> Iterator[Counts]:
    """Cut the events that have muons into blocks of bounded size; a larger event is a block of its own."""
    filled = np.flatnonzero(multiplicity)
    ends = np.cumsum(multiplicity[filled])
    start, below = 0, 0
    while start < len(filled):
        stop = int(np.searchsorted(ends, below + MUONS_AT_ONCE, side="right"))
        stop = min(max(stop, start + 1), start + EVENTS_AT_ONCE)
        yield filled[start:stop]
        start, below = stop, int(ends[stop - 1])


def main() -> None:
    """Read primaries [N, 4] from a .npy file; write multiplicity and muons into a .npz file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("primaries", help="numpy file: energy_gev, zenith_rad, mass_number, depth_m")
    parser.add_argument("out", help="numpy .npz file to write")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sampler = Sampler(Path(__file__).parent)
    multiplicity, muons = sampler.bundles(np.load(given.primaries), np.random.default_rng(given.seed))
    np.savez(given.out, multiplicity=multiplicity, muons=muons)


if __name__ == "__main__":
    main()
