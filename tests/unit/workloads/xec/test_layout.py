"""The layout: 4,760 sensors an event, and the truth that was asked for."""

from crpipe.workloads.xec import layout as module
from crpipe.workloads.xec.layout import SENSOR, SENSORS, TRUTHS, sensor_layout

NUMBERS = ["run", "event"]
NAMES = {
    "energy": ["energy_gev"],
    "position": ["u_cm", "v_cm", "w_cm"],
    "time": ["gamma_time_ns"],
    "angle": ["theta_rad", "phi_rad"],
}


def names(layout):
    return [field.name for field in layout.events]


def test_an_event_has_as_many_items_as_the_detector_has_sensors():
    layout = sensor_layout()
    assert SENSORS == 4092 + 668 == 4760
    assert layout.fixed == SENSORS
    assert layout.item == "sensors"
    assert layout.items == SENSOR
    assert layout.key == ("run", "event")


def test_columns_of_the_items_are_where_their_constants_say():
    columns = {
        "photons": module.PHOTONS,
        "time_ns": module.TIME,
        "photons_valid": module.PHOTONS_VALID,
        "time_valid": module.TIME_VALID,
    }
    assert {field.name: number for number, field in enumerate(SENSOR)} == columns
    assert {field.dtype for field in SENSOR} == {"float32"}


def test_all_truth_is_the_default_and_in_one_order():
    assert names(sensor_layout()) == [*NUMBERS, *(name for truth in TRUTHS for name in NAMES[truth])]
    assert names(sensor_layout(("angle", "energy"))) == [*NUMBERS, "energy_gev", "theta_rad", "phi_rad"]
    assert names(sensor_layout(())) == NUMBERS


def test_events_or_whole_runs_stay_together():
    assert sensor_layout().group == ("run", "event")
    assert sensor_layout(group="run").group == ("run",)
    assert sensor_layout(group="run").key == ("run", "event")


def test_sentinels_of_the_files_are_outside_the_legal_values():
    photons, time, *_ = SENSOR
    assert photons.low < -1  # noise about zero is legal
    assert photons.high < 1e10
    assert time.high < 1e10 * 1e9
