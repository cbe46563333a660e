"""Loaders of gammas in xenon: crpipe or xec-ml-wl, each in a process of its own.

Imports stand inside the functions: no loader pays for the other's libraries.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Epoch = Callable[[], Iterator[Any]]  # yields the ids of each batch's events

RUN = 1_000_000  # as in xec_data.py
SLICE = 32  # events that stay in the processor's cache
PHOTONS, TIME_NS, TIME_SHIFT = (1000.0, 4.08), 114.0, -0.46  # constants of its normalisation
TRUTH = ("energy_gev", "u_cm", "v_cm", "w_cm", "gamma_time_ns", "theta_rad", "phi_rad")


def crpipe(folders: list[Path], hands_out: str, batch: int, workers: int) -> Epoch:
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
    make = raw if hands_out == "raw" else normalised
    loader = Loader(folders, "train", batch_events=batch, seed=(1,), epochs=1 << 20)
    stream = loader.prepared_batches(make, workers=workers)

    def epoch() -> Iterator[Any]:
        left = loader.events
        while left:
            events, _ = next(stream)
            left -= len(events)
            yield events.columns["run"] * RUN + events.columns["event"]

    return epoch


def xec_ml_wl(folder: Path, batch: int, workers: int, threads: int, chunk: int) -> Epoch:
    """Read ROOT files with the peer's loader; chunk 0: with its own defaults."""
    from lib.dataset import get_dataloader  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)  # a line for each dead sensor
    more: dict[str, Any] = {"num_workers": workers, "num_threads": threads, "step_size": chunk}
    more = more | {"log_invalid_npho": False} if chunk else {}
    loader = get_dataloader(str(folder), batch_size=batch, verbose=False, **more)
    return lambda: (truth["run"].numpy() * RUN + truth["event"].numpy() for _, truth in loader)


def side(
    folders: list[str],
    batch: int,
    workers: int,
    least: float,
    hands_out: str = "",
    threads: int = 1,
    chunk: int = 0,
) -> Callable[[], dict[str, Any]]:
    """Prepare a loader, with ``hands_out`` that of crpipe; its work is whole epochs for ``least`` s."""
    places = list(map(Path, folders))
    ours = bool(hands_out)
    read = (
        crpipe(places, hands_out, batch, workers)
        if ours
        else xec_ml_wl(*places, batch, workers, threads, chunk)
    )

    def work() -> dict[str, Any]:
        begin, events, ids, epochs = time.perf_counter(), 0, 0, 0
        while not epochs or time.perf_counter() - begin < least:
            epochs += 1
            for found in read():
                events += len(found)
                ids += int(found.sum())
        return {"events": events, "ids": ids, "epochs": epochs}

    return work
