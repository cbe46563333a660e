"""What an event and a tile are."""

from crpipe.events.layout import Field, Layout

COUNT = 64
TILES = Layout(
    item="tiles",
    events=(
        Field("run", "uint32", "", 0, 2**32 - 1, "number of the run"),
        Field("event", "uint32", "", 0, 2**32 - 1, "number of the event in its run"),
        Field("energy_mev", "float32", "MeV", 0, 100, "true energy"),
        Field("rate_hz", "float32", "Hz", 0, 1e6, "events like this one in a second of the real beam"),
    ),
    items=(
        Field("signal", "float32", "mV", -1e3, 1e5, "height of the pulse"),
        Field("delay_ns", "float32", "ns", -1e3, 1e3, "time after the trigger"),
    ),
    group=("run", "event"),
    key=("run", "event"),
    weight="rate_hz",
    fixed=COUNT,
)
