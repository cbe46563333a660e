"""The outlier threshold as a quantile of reference ranges."""

import pytest

from crpipe.core.errors import ConfigError, DataError, FormatError, ListingError
from crpipe.core.files import read_json, remove_tree
from crpipe.core.progress import Silent
from crpipe.split.threshold import choose_threshold, threshold_of
from raw_files import NAME, campaign, raw_folder, write_parquet, write_staged


def staged(tmp_path, *overrides, multiplicity=range(100)):
    config = campaign(tmp_path, "split.quantile=0.9", *overrides)
    write_parquet(raw_folder(config) / "a.parquet", list(multiplicity))
    write_staged(config)
    return config


def test_the_quantile_becomes_the_threshold_and_outlives_the_raw_files(tmp_path):
    config = staged(tmp_path)
    with pytest.raises(DataError, match="missing"):
        threshold_of(config)
    choose_threshold(config, Silent())
    chosen = {"threshold": 89, "quantile": 0.9, "ranges": [NAME], "events": 100}
    assert read_json(config.paths().threshold()) == chosen
    assert threshold_of(config) == 89
    remove_tree(config.paths().raw(NAME))
    choose_threshold(config, Silent())
    assert threshold_of(config) == 89


def test_without_a_quantile_the_configured_number_counts(tmp_path):
    config = campaign(tmp_path)
    assert threshold_of(config) == 20
    with pytest.raises(ConfigError, match=r"split\.quantile: not set"):
        choose_threshold(config, Silent())


def test_ranges_that_are_not_of_the_campaign(tmp_path):
    config = staged(tmp_path, "split.reference_ranges=[0009000-0009999]")
    with pytest.raises(ConfigError, match="0009000-0009999 is not a range"):
        choose_threshold(config, Silent())


def test_no_events_to_choose_from(tmp_path):
    with pytest.raises(ListingError, match="hold no events"):
        choose_threshold(staged(tmp_path, multiplicity=[]), Silent())


def test_a_bad_file_follows_the_rule_for_bad_files(tmp_path):
    for policy in ("fail", "quarantine"):
        config = staged(tmp_path / policy, f"source.on_bad_file={policy}")
        (raw_folder(config) / "bad.parquet").write_bytes(b"nothing")
        write_staged(config)
        if policy == "fail":
            with pytest.raises(FormatError, match=r"bad\.parquet"):
                choose_threshold(config, Silent())
        else:
            choose_threshold(config, Silent())
            assert threshold_of(config) == 89
