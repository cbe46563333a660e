"""Column names, types, units and legal values of muon bundles."""

from __future__ import annotations

from crpipe.events.layout import Field, Layout

PRIMARY_IDS = (
    Field("primary_major_id", "uint64", "", 0, 2**64 - 1, "production run of the primary"),
    Field(
        "primary_minor_id",
        "uint64",
        "",
        0,
        2**64 - 1,
        "number of the primary within its run: the same in all its rows",
    ),
)


PRIMARY = (
    Field("energy_gev", "float32", "GeV", 1e-3, 1e15, "energy of the primary"),
    Field("zenith_rad", "float32", "rad", 0.0, 3.1415930, "zenith angle of the primary, 0 = vertically down"),
    Field("mass_number", "float32", "", 1, 300, "mass number of the primary nucleus"),
    Field("depth_m", "float32", "m", 0.0, 1e5, "vertical depth in the ice at which the muons are recorded"),
)


MUON = (
    Field("energy_gev", "float32", "GeV", 0.0, 1e15, "energy of the muon at this depth"),
    Field("x_m", "float32", "m", -1e6, 1e6, "x from the shower axis, in the plane across it"),
    Field("y_m", "float32", "m", -1e6, 1e6, "y from the shower axis, in the plane across it"),
)


BUNDLES = Layout("muons", (*PRIMARY_IDS, *PRIMARY), MUON, ("primary_major_id", "primary_minor_id"))


# The simulation's converter: one list column per row for the primary, one list of lists for its muons.
RAW_PRIMARY = "primary"


RAW_MUONS = "muons"


# The converter from and to HDF5 has the ids and a time in each row; times are not read.
_IDS = tuple(field.name for field in PRIMARY_IDS)
CONVERTED_PRIMARY = (*_IDS, *(field.name for field in PRIMARY[:3]), "time", PRIMARY[3].name)
CONVERTED_MUON = (*_IDS, *(field.name for field in MUON), "time")
