"""The outlier threshold as a quantile of reference ranges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.campaign.campaign import Campaign, check_threshold
from crpipe.core.errors import ConfigError, DataError, FormatError, ListingError
from crpipe.core.files import read_json, remove_tree
from crpipe.split.parts import quantile_of
from plain_reader import HITS
from raw_files import NAME, campaign, choose, raw_folder, write_parquet, write_staged


def staged(tmp_path, *overrides, multiplicity=range(100)):
    config = campaign(tmp_path, "split.quantile=0.9", *overrides)
    write_parquet(raw_folder(config) / "a.parquet", list(multiplicity))
    write_staged(config)
    return config


def threshold(config):
    return Campaign.open(config).threshold()


def test_the_quantile_becomes_the_threshold_and_outlives_the_raw_files(tmp_path):
    config = staged(tmp_path)
    with pytest.raises(DataError, match="missing"):
        threshold(config)
    choose(config)
    chosen = {"threshold": 89, "quantile": 0.9, "ranges": [NAME], "events": 100}
    assert read_json(config.paths().threshold()) == chosen
    assert threshold(config) == 89
    remove_tree(config.paths().raw(NAME))
    choose(config)
    assert threshold(config) == 89


def test_without_a_quantile_the_configured_number_counts(tmp_path):
    config = campaign(tmp_path)
    assert threshold(config) == 20
    with pytest.raises(ConfigError, match=r"split\.quantile: not set"):
        choose(config)


def test_ranges_that_are_not_of_the_campaign(tmp_path):
    config = staged(tmp_path, "split.reference_ranges=[0009000-0009999]")
    with pytest.raises(ConfigError, match="0009000-0009999 is not a range"):
        choose(config)


def test_no_events_to_choose_from(tmp_path):
    with pytest.raises(ListingError, match="hold no events"):
        choose(staged(tmp_path, multiplicity=[]))


def test_a_bad_file_follows_the_rule_for_bad_files(tmp_path):
    for policy in ("fail", "quarantine"):
        config = staged(tmp_path / policy, f"source.on_bad_file={policy}")
        (raw_folder(config) / "bad.parquet").write_bytes(b"nothing")
        write_staged(config)
        if policy == "fail":
            with pytest.raises(FormatError, match=r"bad\.parquet"):
                choose(config)
        else:
            choose(config)
            assert threshold(config) == 89


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.floats(0.001, 0.999))
def test_the_quantile_is_that_of_numpy(values, quantile):
    counts = dict(zip(*map(np.ndarray.tolist, np.unique(values, return_counts=True)), strict=True))
    assert quantile_of(counts, quantile) == np.quantile(values, quantile, method="inverted_cdf")


def test_a_threshold_below_a_fixed_size_is_refused():
    check_threshold(HITS, 1)
    check_threshold(replace(HITS, fixed=4760), 4760)
    with pytest.raises(ConfigError, match=r"split\.outlier_above: 4759 is below the 4760 hits"):
        check_threshold(replace(HITS, fixed=4760), 4759)


def test_several_ranges_count_together(tmp_path):
    config = staged(tmp_path, "ranges.last=1999", "split.reference_ranges=[0000000-0000999, 0001000-0001999]")
    write_parquet(raw_folder(config, "0001000-0001999") / "a.parquet", [500] * 900)
    write_staged(config, "0001000-0001999")
    choose(config)
    assert threshold(config) == 500
    assert read_json(config.paths().threshold())["events"] == 1000
