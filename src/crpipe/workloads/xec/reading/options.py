"""Options of the readers (section ``reader`` of the configuration)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from crpipe.workloads.xec.layout import TRUTHS, Truth

Axis = Literal["x", "y", "z", "-x", "-y", "-z"]


def _option(default: Any, meaning: str, **bounds: Any) -> Any:
    return Field(default, description=meaning, json_schema_extra={"scope": "data"}, **bounds)


class RootBranches(BaseModel):
    """Names of the branches of the tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    npho: str = _option("npho", "photons of each sensor, [4760]; relative_npho in old files")
    relative_time: str = _option("relative_time", "time of each sensor in s, [4760]")
    run: str = _option("run", "number of the run")
    event: str = _option("event", "number of the event in its run")
    energy: str = _option("energyTruth", "energy of the gamma in GeV")
    position: str = _option("uvwTruth", "u, v, w of the first conversion in cm, [3]")
    time: str = _option("timeTruth", "time of the conversion in s")
    angle: str = _option("emiAng", "theta and phi of the emission in degrees, [2]")


class RootFilesOptions(BaseModel):
    """What RootFiles reads, and from where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tree: str = _option("tree", "name of the TTree")
    branches: RootBranches = _option(RootBranches(), "names of its branches")
    truth: tuple[Truth, ...] = _option(
        TRUTHS, "what is kept of the truth; [] for measured events; NaN where the file lacks the branch"
    )
    group: Literal["event", "run"] = _option(
        "event", "what stays together in training, validation or test: single events, or whole runs"
    )
    npho_threshold: float = _option(100.0, "photons below which a sensor has no time", ge=0)
    fiducial: bool = _option(
        default=False,
        meaning="only |u| <= 23.9 cm, |v| <= 67.9 cm and w >= 0 are legal; split.on_bad_event: reject leaves "
        "the other events out, and the ledger counts them",
    )
    dead: bool = _option(default=False, meaning="read the table dead, a list of dead sensors")
    sensors: bool = _option(default=False, meaning="check the table sensors, the places of the sensors")

    @model_validator(mode="after")
    def _position_is_cut(self) -> Self:
        if self.fiducial and "position" not in self.truth:
            raise ValueError("fiducial: the cut is on u, v and w; add position to truth")
        return self


class LiquidOFilesOptions(BaseModel):
    """How the vertices of LiquidOFiles lie in the frame of the hits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vertex_axes: tuple[Axis, Axis, Axis] = _option(
        ("z", "y", "-x"), "which axis of the file's vertices and directions lies along x, y and z of its hits"
    )

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if sorted(axis[-1] for axis in self.vertex_axes) != ["x", "y", "z"]:
            raise ValueError(f"vertex_axes: name x, y and z once each, not {', '.join(self.vertex_axes)}")
        return self
