"""What an event and a hit are."""

from crpipe.events.layout import Field, Layout

HITS = Layout(
    item="hits",
    events=(
        Field("event_id", "uint64", "", 0, 2**64 - 1, "number of the event"),
        Field("station", "int16", "", -100, 100, "where the detector stood; below zero: south of the road"),
        Field("energy_mev", "float32", "MeV", 1, 1e4, "true energy"),
        Field("x_m", "float32", "m", -50, 50, "true position"),
        Field("y_m", "float32", "m", -50, 50, "true position"),
    ),
    items=(
        Field("detector", "float32", "", 0, 143, "row of the geometry table"),
        Field("time_ns", "float32", "ns", -1e5, 1e6, "time after the start of the event"),
        Field("charge_pe", "float32", "photoelectrons", 0, 1e5, "charge"),
    ),
    group=("station",),
    key=("event_id",),
)
