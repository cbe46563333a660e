"""Arrays of sensors for a batch: all of them, with some hidden, or with some dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads.xec.layout import PHOTONS_VALID, SENSORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events


def sensors_of(events: Events) -> NDArray[np.float32]:
    """View the items of N events as [N, 4760, 4], without a copy."""
    return events.items.reshape(len(events), SENSORS, -1)


def without_channels(
    sensors: NDArray[np.float32], share: float, seed: tuple[int, ...]
) -> NDArray[np.float32]:
    """Copy sensors [N, 4760, 4] with a random ``share`` of them dead: no photons, no time, not valid."""
    random = np.random.default_rng(seed).random(sensors.shape[:2], np.float32)
    return np.where((random < share)[..., None], np.float32(0), sensors)


def hidden_sensors(
    sensors: NDArray[np.float32], shares: NDArray[np.float64], seed: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Choose the share of the valid sensors that is hidden, exactly, event by event: [N, 4760].

    shares: [N]. At least one sensor of each event that has a valid one is chosen, and never all of several.
    """
    valid = sensors[..., PHOTONS_VALID] > 0
    count = valid.sum(axis=1)
    wanted = np.clip(np.round(shares * count), 1, np.maximum(count - 1, 1)).astype(np.int64)
    wanted = np.minimum(wanted, count)
    keys = np.random.default_rng(seed).random(sensors.shape[:2])
    keys[~valid] = 2.0
    order = np.sort(keys, axis=1)
    limit = np.take_along_axis(order, np.minimum(wanted, SENSORS - 1)[:, None], axis=1)
    chosen: NDArray[np.bool_] = (keys < limit) & valid
    return chosen
