"""Options of the simulator of tracks and cascades (section ``simulator`` of the configuration)."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


def option(default: Any, meaning: str, **bounds: Any) -> Any:
    """Declare an option; every option of a simulator is part of the fingerprint."""
    return Field(default, description=meaning, json_schema_extra={"scope": "data"}, **bounds)


class NeutrinoTelescopeOptions(BaseModel):
    """How many events of which kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
