"""Options of what hitlab offers; without torch, because the configuration is checked by every verb."""

from pydantic import BaseModel, ConfigDict, Field


class HitFilesOptions(BaseModel):
    """Options of the reader (section `reader`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    charge_scale: float = Field(1.0, description="photoelectrons of one unit of charge in the files", gt=0)


class HitPositionOptions(BaseModel):
    """Options of the workload (section `model`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(16, description="width of the network", ge=4)
    learning_rate: float = Field(3e-3, description="learning rate", gt=0)
