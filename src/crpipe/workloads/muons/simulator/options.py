"""Options of the muon simulator (section ``simulator`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import model_validator

from crpipe.config.keys import Section, key

option = partial(key, scope="data")


class AirShowersOptions(Section):
    """Primaries, depths and files of the simulation."""

    files_per_range: int = option(8, "files in each range", ge=1)
    showers_per_file: int = option(40, "primaries in each file", ge=1)
    depths: int = option(100, "depths at which each primary is recorded; one row each", ge=1, le=10_000)
    depth_min_m: float = option(1000.0, "smallest vertical depth, in m", ge=1000)
    depth_max_m: float = option(2800.0, "largest vertical depth, in m", le=20_000)
    spectrum: Literal["power_law", "gaisser_h3a", "gaisser_h4a"] = option(
        "power_law",
        "energies and masses of the primaries: a power law with fixed shares, or a model of measured fluxes",
    )
    energy_min_gev: float = option(1e3, "smallest primary energy, in GeV", gt=0)
    energy_max_gev: float = option(1e11, "largest primary energy, in GeV", gt=0, le=1e12)
    spectral_index: float = option(1.25, "primary spectrum E^-index; power_law only", ge=0, le=10)
    composition: tuple[float, float, float, float, float] = option(
        (5.0, 2.25, 1.1, 1.2, 1.0),
        "relative shares of protons, helium, nitrogen, aluminium and iron; power_law only",
    )
    zenith_max_deg: float = option(80.0, "largest zenith angle, in degrees", gt=0, le=89)
    zenith_law: Literal["isotropic", "plane"] = option(
        "isotropic", "zenith angles flat in the cosine, or as an isotropic flux crosses a horizontal plane"
    )

    @model_validator(mode="after")
    def _ordered(self) -> AirShowersOptions:
        if self.depth_max_m < self.depth_min_m:
            raise ValueError("depth_max_m must be at least depth_min_m")
        if self.energy_max_gev <= self.energy_min_gev:
            raise ValueError("energy_max_gev must be above energy_min_gev")
        if min(self.composition) < 0 or not sum(self.composition):
            raise ValueError("composition needs shares of at least 0, not all of them 0")
        fields = type(self).model_fields
        ignored = [
            name for name in ("composition", "spectral_index") if getattr(self, name) != fields[name].default
        ]
        if self.spectrum != "power_law" and ignored:
            raise ValueError(f"{ignored[0]} does not apply to spectrum {self.spectrum}: remove it")
        return self


class CascadeOptions(AirShowersOptions):
    """Those of ``AirShowers``, and the model of interactions."""

    energy_max_gev: float = option(1e8, "largest primary energy, in GeV", gt=0, le=1e10)
    model: Literal["Sibyll21", "Sibyll23d", "Sibyll23e"] = option(
        "Sibyll23d", "model of hadronic interactions, by its name in chromo"
    )
