"""Options of the simulator of gammas in liquid xenon (section ``simulator`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Self

from pydantic import model_validator

from crpipe.config.keys import Section, key

option = partial(key, scope="data")


class XenonDetectorOptions(Section):
    """How many gammas of which energy, and how many sensors do not work."""

    files_per_range: int = option(1, "files in each range", ge=1)
    events_per_file: int = option(1000, "events in each file", ge=1, le=1_000_000)
    energy_min_gev: float = option(0.015, "smallest energy of the gammas, in GeV", gt=0)
    energy_max_gev: float = option(
        0.060, "largest energy, in GeV; equal to the smallest one for gammas of one energy", gt=0, le=1
    )
    dead_fraction: float = option(
        0.015, "share of the sensors that are dead, the same ones in every file", ge=0, le=0.5
    )

    @model_validator(mode="after")
    def _energies(self) -> Self:
        if self.energy_min_gev > self.energy_max_gev:
            raise ValueError(
                f"energy_min_gev: {self.energy_min_gev:g} is above energy_max_gev, {self.energy_max_gev:g}"
            )
        return self
