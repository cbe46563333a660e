"""The options of the model."""

from pydantic import BaseModel, ConfigDict, Field


class VoxelFlowOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(64, ge=1, description="width of the layers")
    couplings: int = Field(6, ge=2, description="affine couplings, each of which moves a half of the voxels")
