"""Options of what tilelab offers."""

from pydantic import BaseModel, ConfigDict, Field


class BeamTestOptions(BaseModel):
    """Options of the simulation (section `simulator`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    events_per_file: int = Field(100, description="events in each file", ge=1)
    noise_mv: float = Field(2.0, description="noise of a tile, in mV", ge=0)


class TileEnergyOptions(BaseModel):
    """Options of the workload (section `model`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(8, description="width of the network", ge=1)
