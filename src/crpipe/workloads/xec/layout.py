"""An event: all photosensors of the detector, and what is known about the gamma that it saw."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from crpipe.events.layout import Field, Layout

SENSORS = 4760
LARGEST = 9e9  # photons or s beyond this are sentinels of the files, not values
TIME_NS = 1e7  # relative times are within ±10 ms
SENSOR = (
    Field("photons", "float32", "", -LARGEST, LARGEST, "photons seen, as calibrated; 0 where not valid"),
    Field("time_ns", "float32", "ns", -TIME_NS, TIME_NS, "time of the light; 0 where not valid"),
    Field("photons_valid", "float32", "", 0, 1, "0 for a dead sensor"),
    Field("time_valid", "float32", "", 0, 1, "1 where the sensor saw enough light to time it"),
)
PHOTONS, TIME, PHOTONS_VALID, TIME_VALID = range(4)  # columns of the items
# One more, where the reader knows at how many photons a sensor is saturated; models do not read it.
SATURATED = Field("saturated", "float32", "", 0, 1, "1 for a saturated sensor: it saw at least its photons")

Face = Literal["inner", "outer", "us", "ds", "top", "bottom"]
Truth = Literal["energy", "position", "time", "angle"]
TRUTHS: tuple[Truth, ...] = ("energy", "position", "time", "angle")
TRUTH: dict[Truth, tuple[Field, ...]] = {
    "energy": (Field("energy_gev", "float32", "GeV", 0, 10, "energy of the gamma"),),
    "position": (
        Field("u_cm", "float32", "cm", -1000, 1000, "place of the first conversion along the axis"),
        Field("v_cm", "float32", "cm", -1000, 1000, "its place around the axis, on the inner face"),
        Field("w_cm", "float32", "cm", -1000, 1000, "its depth behind the inner face"),
    ),
    "time": (Field("gamma_time_ns", "float32", "ns", -TIME_NS, TIME_NS, "time of the conversion"),),
    "angle": (
        Field("theta_rad", "float32", "rad", -math.tau, math.tau, "polar angle of the emission"),
        Field("phi_rad", "float32", "rad", -math.tau, math.tau, "azimuth of the emission"),
    ),
}
# Where the median of each column usually is, without signs: it shows another unit.
TYPICAL = {
    "energy_gev": (2e-3, 0.5),
    "u_cm": (1, 45),
    "v_cm": (1, 90),
    "w_cm": (0.5, 45),
    "gamma_time_ns": (0.01, 5e3),
    "theta_rad": (0.1, math.tau),
    "phi_rad": (0.1, math.tau),
    "sensors.time_ns": (0.01, 5e3),
}
# The volume in which light is well measured; depth is only bounded by the inner face.
FIDUCIAL = {"u_cm": (-23.9, 23.9), "v_cm": (-67.9, 67.9), "w_cm": (0, 1000)}


def sensor_layout(
    truth: tuple[Truth, ...] = TRUTHS,
    group: Literal["event", "run"] = "event",
    *,
    fiducial: bool = False,
    saturated: bool = False,
) -> Layout:
    """Return the layout of 4,760 sensors with the event columns of ``truth``.

    group: what stays together in training, validation or test: single events, or whole runs.
    fiducial: only positions in the fiducial volume are legal values. saturated: add the column ``SATURATED``.
    """
    number = (
        Field("run", "int64", "", 0, 2**53, "number of the run"),
        Field("event", "int64", "", 0, 2**53, "number of the event in its run"),
    )
    columns = [field for name in TRUTHS if name in truth for field in TRUTH[name]]
    if fiducial:
        columns = [_narrowed(field) for field in columns]
    together = ("run",) if group == "run" else ("run", "event")
    items = (*SENSOR, SATURATED) if saturated else SENSOR
    return Layout("sensors", (*number, *columns), items, group=together, key=("run", "event"), fixed=SENSORS)


def _narrowed(field: Field) -> Field:
    low, high = FIDUCIAL.get(field.name, (field.low, field.high))
    return replace(field, low=low, high=high)
