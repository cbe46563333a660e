from collections.abc import Callable

import numpy as np
import pytest

from crpipe.workloads.muons.scoring.sample import Sample


def make_sample(events: int = 4000, seed: int = 0, shift: float = 0.0, stretch: float = 1.0) -> Sample:
    """Toy bundles; conditions depend on nothing but their number, muons on the seed."""
    fixed = np.random.default_rng(12)
    columns = {
        "energy_gev": 10 ** fixed.uniform(4, 8, events),
        "zenith_rad": fixed.uniform(0, 1.3, events),
        "mass_number": fixed.choice([1.0, 4.0, 56.0], events),
        "depth_m": fixed.uniform(1000, 2800, events),
    }
    rng = np.random.default_rng(seed)
    mean = stretch * (columns["energy_gev"] / 1e6) ** 0.5 * 2000 / columns["depth_m"]
    multiplicity = rng.poisson(mean * rng.gamma(2.0, 0.5, events)).astype(np.uint32)
    total = int(multiplicity.sum())
    log_energy = rng.normal(2.2 + shift, 0.6, total)
    radius = 10 ** (rng.normal(0.9, 0.4, total) - 0.3 * (log_energy - shift - 2.2))
    azimuth = rng.uniform(0, 2 * np.pi, total)
    muons = np.stack([10**log_energy, radius * np.cos(azimuth), radius * np.sin(azimuth)], axis=1)
    return Sample(columns, multiplicity, muons.astype(np.float32), np.arange(events) // 2)


@pytest.fixture(scope="session")
def toy() -> Callable[..., Sample]:
    return make_sample
