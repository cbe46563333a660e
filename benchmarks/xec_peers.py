"""Epochs of a loader for each line of standard input: crpipe or xec-ml-wl, each in a process of its own.

Run by benchmarks/xec.py. After a line it reads whole epochs until LEAST seconds are over and prints JSON:
seconds of wall and CPU time, workers included, how many events there were, with the sum of their ids, how
many epochs, and the largest resident set of the process. Imports stand inside the functions: no loader pays
for the other's libraries.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peak import peak_mib
from side_by_side import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Epoch = Callable[[], Iterator[Any]]  # yields the ids of each batch's events

RUN = 1_000_000  # as in xec_data.py
SLICE = 32  # events that stay in the processor's cache
PHOTONS, TIME_NS, TIME_SHIFT = (1000.0, 4.08), 114.0, -0.46  # constants of its normalisation
TRUTH = ("energy_gev", "u_cm", "v_cm", "w_cm", "gamma_time_ns", "theta_rad", "phi_rad")


def crpipe(given: argparse.Namespace) -> Epoch:
    """Read shards into tensors: items as they are stored, or normalised by xec-ml-wl's formulas.

    As in training, one loader reads all epochs.
    """
    import numpy as np
    import torch

    from crpipe.loading.loader import Loader

    def truth(events: Any) -> torch.Tensor:
        return torch.from_numpy(np.stack([events.columns[name] for name in TRUTH], axis=1))

    def raw(pair: Any) -> Any:
        events, _ = pair
        return events, (torch.from_numpy(events.items).view(len(events), -1, 4), truth(events))

    def normalised(pair: Any) -> Any:
        events, (items, values) = raw(pair)
        found = torch.empty(2, *items.shape[:2])
        for part, into in zip(items.split(SLICE), found.split(SLICE, dim=1), strict=True):
            photons, time_ns, valid, timed = part.unbind(dim=2)
            light = photons.mul(1 / PHOTONS[0]).log1p_().mul_(1 / PHOTONS[1])
            torch.where(valid > 0, light, none, out=into[0])
            torch.where(timed > 0, time_ns.mul(1 / TIME_NS).sub_(TIME_SHIFT), none, out=into[1])
        return events, (found.permute(1, 2, 0), values)

    none = torch.tensor(-1.0)
    make = raw if given.hands_out == "raw" else normalised
    loader = Loader(given.folders, "train", batch_events=given.batch, seed=(1,), epochs=1 << 20)
    stream = loader.made(make, workers=given.workers)

    def epoch() -> Iterator[Any]:
        left = loader.events
        while left:
            events, _ = next(stream)
            left -= len(events)
            yield events.columns["run"] * RUN + events.columns["event"]

    return epoch


def xec_ml_wl(given: argparse.Namespace) -> Epoch:
    """Read ROOT files with the peer's loader; chunk 0: with its own defaults."""
    from lib.dataset import get_dataloader  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)  # a line for each dead sensor
    more: dict[str, Any] = {}
    if given.chunk:
        more = {
            "num_workers": given.workers,
            "num_threads": given.threads,
            "step_size": given.chunk,
            "log_invalid_npho": False,
        }
    (folder,) = given.folders
    loader = get_dataloader(str(folder), batch_size=given.batch, verbose=False, **more)
    return lambda: (truth["run"].numpy() * RUN + truth["event"].numpy() for _, truth in loader)


LOADERS = {"crpipe": crpipe, "xec-ml-wl": xec_ml_wl}


def serve(epoch: Epoch, least: float, answers: Any) -> None:
    """Read epochs for each line of standard input."""
    before = peak_mib()
    for _ in sys.stdin:
        wall, cpu, events, ids, epochs = time.perf_counter(), cpu_seconds(), 0, 0, 0
        while not epochs or time.perf_counter() - wall < least:
            epochs += 1
            for batch in epoch():
                events += len(batch)
                ids += int(batch.sum())
        found = {
            "wall": time.perf_counter() - wall,
            "cpu": cpu_seconds() - cpu,
            "events": events,
            "ids": ids,
            "epochs": epochs,
            "before": before,
            "peak": peak_mib(),
        }
        print(json.dumps(found), file=answers, flush=True)


def main() -> None:
    """Prepare a loader and serve; whatever others print goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--hands-out", choices=["raw", "normalised"], default="raw")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # other people's deprecations
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(LOADERS[given.loader](given), given.least, answers)


if __name__ == "__main__":
    main()
