"""Options of the readers (section ``reader`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from crpipe.config.keys import Section, key
from crpipe.workloads.xec.layout import LARGEST, TRUTHS, Truth

option = partial(key, scope="data")

Axis = Literal["x", "y", "z", "-x", "-y", "-z"]


class RootBranches(Section):
    """Names of the branches of the tree."""

    npho: str = option("npho", "photons of each sensor, [4760]; relative_npho in old files")
    relative_time: str = option("relative_time", "time of each sensor in s, [4760]")
    run: str = option("run", "number of the run")
    event: str = option("event", "number of the event in its run")
    energy: str = option("energyTruth", "energy of the gamma in GeV")
    position: str = option("uvwTruth", "u, v, w of the first conversion in cm, [3]")
    time: str = option("timeTruth", "time of the conversion in s")
    angle: str = option("emiAng", "theta and phi of the emission in degrees, [2]")


class RootFilesOptions(Section):
    """What RootFiles reads, and from where."""

    tree: str = option("tree", "name of the TTree")
    branches: RootBranches = option(RootBranches(), "names of its branches")
    truth: tuple[Truth, ...] = option(
        TRUTHS, "what is kept of the truth; [] for measured events; NaN where the file lacks the branch"
    )
    group: Literal["event", "run"] = option(
        "event", "what stays together in training, validation or test: single events, or whole runs"
    )
    npho_threshold: float = option(100.0, "photons below which a sensor has no time", ge=0)
    sentinel: tuple[float, ...] = option(
        (),
        "values of npho and relative_time that mean no value, as the file has them: -999, or [-999, 0]; NaN "
        "and values beyond ±9e9 always do",
        later=True,
    )
    saturated: float | None = option(
        None,
        "photons at which a sensor is saturated: npho of inf, or at least this, becomes this number, and "
        "gets 1 in the item column saturated; null: inf is refused",
        later=True,
        gt=0,
        le=LARGEST,
    )
    fiducial: bool = option(
        default=False,
        meaning="only |u| <= 23.9 cm, |v| <= 67.9 cm and w >= 0 are legal; split.on_bad_event: reject leaves "
        "the other events out, and the ledger counts them",
    )
    dead: bool = option(default=False, meaning="read the table dead, a list of dead sensors")
    sensors: bool = option(default=False, meaning="check the table sensors, the places of the sensors")

    @field_validator("sentinel", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else (value,)

    @model_validator(mode="after")
    def _position_is_cut(self) -> Self:
        if self.fiducial and "position" not in self.truth:
            raise ValueError("fiducial: the cut is on u, v and w; add position to truth")
        return self


class LiquidOFilesOptions(Section):
    """How the vertices of LiquidOFiles lie in the frame of the hits."""

    vertex_axes: tuple[Axis, Axis, Axis] = option(
        ("z", "y", "-x"), "which axis of the file's vertices and directions lies along x, y and z of its hits"
    )

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if sorted(axis[-1] for axis in self.vertex_axes) != ["x", "y", "z"]:
            raise ValueError(f"vertex_axes: name x, y and z once each, not {', '.join(self.vertex_axes)}")
        return self
