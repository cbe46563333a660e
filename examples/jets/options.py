"""The options of the model; no torch, so that a configuration is checked fast."""

from pydantic import BaseModel, ConfigDict, Field


class JetTaggerOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(32, ge=1, description="width of the layers")
    learning_rate: float = Field(3e-3, gt=0, description="of Adam")
