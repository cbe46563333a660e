"""Options of the simulator of tracks and cascades (section ``simulator`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Self

from pydantic import model_validator

from crpipe.config.keys import Section, key

option = partial(key, scope="data")


class NeutrinoTelescopeOptions(Section):
    """How many events of which kind."""

    files_per_range: int = option(1, "files in each range", ge=1)
    events_per_file: int = option(2000, "events in each file that trigger", ge=1, le=1_000_000)
    cascade_fraction: float = option(0.3, "share of cascades among the simulated events", ge=0, le=1)
    energy_min_gev: float = option(100.0, "smallest energy, in GeV", gt=0)
    energy_max_gev: float = option(1e8, "largest energy, in GeV", gt=0, le=1e12)
    spectral_index: float = option(2.0, "energies follow E^-index", ge=0, le=10)
    noise_hz: float = option(500.0, "dark noise of one sensor, in Hz", ge=0, le=1e5)

    @model_validator(mode="after")
    def _energies(self) -> Self:
        if self.energy_min_gev >= self.energy_max_gev:
            raise ValueError(
                f"energy_min_gev: {self.energy_min_gev:g} is not below energy_max_gev, "
                f"{self.energy_max_gev:g}"
            )
        return self
