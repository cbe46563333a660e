"""Options of the readers of pulses."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class KaggleFilesOptions(BaseModel):
    """What KaggleFiles keeps beside the direction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    truth: tuple[str, ...] = Field(
        (),
        description="further columns of the metadata to keep with each event, for example [energy_gev]",
        json_schema_extra={"scope": "data"},
    )
