import pytest
from pydantic import ValidationError

from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError
from crpipe.workloads.muons import MuonGanOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gp_every": 2}, "gp_every need penalty: gradient"),
        ({"penalty": "none", "penalty_weight": 3.0}, "need a penalty"),
        ({"momentum": 0.5}, "momentum needs optimizer: sgd"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        MuonGanOptions(**options)


def test_an_option_that_does_not_apply_is_told_with_its_section():
    with pytest.raises(ConfigError, match=r"model.*gp_every need penalty: gradient"):
        load_config([], ["train.workload=crpipe.workloads.muons:MuonGan", "model.gp_every=2"])


def test_options_that_apply_are_taken():
    assert MuonGanOptions(penalty="gradient", gp_every=2, gp_max_pairs=4096).gp_every == 2
