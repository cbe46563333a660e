"""An event: the pulses of one trigger, and the direction that the neutrino came from."""

from __future__ import annotations

import math

from crpipe.events.layout import Field, Layout

EXACT_NS = 2**24  # times up to here are exact as float32
PULSE = (
    Field("sensor_id", "float32", "", 0, 65535, "row of the geometry table"),
    Field("time_ns", "float32", "ns", 0, EXACT_NS, "time in the trigger's window"),
    Field("charge_pe", "float32", "photoelectrons", 0, 1e7, "charge"),
    Field("auxiliary", "float32", "", 0, 1, "1 for a pulse that is not in hard local coincidence"),
)
TRUTH = (
    Field("azimuth", "float64", "rad", 0, 2 * math.pi, "azimuth that the neutrino came from"),
    Field("zenith", "float64", "rad", 0, math.pi, "zenith angle that it came from; 0: straight from above"),
)
ENERGY = Field("energy_gev", "float64", "GeV", 0, 1e15, "energy of the neutrino or of its muon")


def pulses(*more: Field) -> Layout:
    """Give the layout of the pulses of an event, with further event columns.

    Times of up to 2**24 ns are exact as float32.
    """
    number = Field("event_id", "int64", "", 0, 2**63 - 1, "number of the event")
    return Layout("pulses", (number, *TRUTH, *more), PULSE, group=("event_id",), key=("event_id",))


PULSES = pulses()
PULSES_WITH_ENERGY = pulses(ENERGY)
