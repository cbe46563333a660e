from collections.abc import Callable

import numpy as np
import pytest

from crpipe.events.batch import Events


def make_events(multiplicity: list[int] | np.ndarray, seed: int = 0) -> Events:
    rng = np.random.default_rng(seed)
    counts = np.asarray(multiplicity, np.uint32)
    total, events = int(counts.sum()), len(counts)
    columns = {
        "primary_major_id": np.full(events, 7, np.uint64),
        "primary_minor_id": np.arange(events, dtype=np.uint64),
        "energy_gev": (10 ** rng.uniform(3, 8, events)).astype(np.float32),
        "zenith_rad": rng.uniform(0, 1.3, events).astype(np.float32),
        "mass_number": rng.choice([1, 4, 14, 27, 56], events).astype(np.float32),
        "depth_m": rng.uniform(1000, 2800, events).astype(np.float32),
    }
    radius, azimuth = 10 ** rng.normal(0.8, 0.5, total), rng.uniform(0, 2 * np.pi, total)
    energy = 10 ** rng.normal(2.2, 0.7, total)
    items = np.stack([energy, radius * np.cos(azimuth), radius * np.sin(azimuth)], 1).astype(np.float32)
    return Events(columns, counts, items)


@pytest.fixture
def bundles() -> Callable[..., Events]:
    return make_events
