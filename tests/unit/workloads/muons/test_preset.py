from pathlib import Path

from crpipe.config.loading import load_config

PRESET = Path(__file__).parents[4] / "config" / "presets" / "cr_muons.yaml"


def test_the_preset_is_a_valid_configuration():
    options = load_config([PRESET]).options()
    assert options["optimizer"] == "sgd"
    assert options["penalty"] == "none"
    assert options["features"] == "cartesian"
