from dataclasses import replace

import pytest

from campaign_files import EVENTS, LAYOUT, CampaignFiles
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.lease import Mount
from crpipe.report import plan
from crpipe.report.estimates import Ratios, measure_ratios, peak_disk
from crpipe.report.plan import render_plan
from crpipe.report.state import files_of
from crpipe.report.work_state import State

RAW = 10 * (40 << 20)  # of one range


def words(files):
    return " ".join(render_plan(files.plan()).split())


def volume_of(files):
    return files.plan().volume


def test_nothing_listed_is_of_unknown_size(tmp_path):
    files = CampaignFiles(tmp_path, ranges=5)
    volume = volume_of(files)
    assert (volume.ranges, volume.known, volume.bytes) == (5, 0, None)
    assert "sizes are known once the first range is listed or staged" in words(files)


def test_manifests_are_taken_as_they_are(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.listed(0, size=10 << 20)
    files.listed(1, size=30 << 20)
    volume = volume_of(files)
    assert (volume.files, volume.bytes, volume.largest) == (20, 400 << 20, 300 << 20)
    assert "not listed" not in words(files)
    assert "list 2 2" in words(files)


def test_a_range_that_is_not_listed_counts_as_the_mean_of_the_others(tmp_path):
    files = CampaignFiles(tmp_path, ranges=3)
    files.listed(0, size=10 << 20)
    files.listed(1, size=30 << 20)
    assert volume_of(files).bytes == 600 << 20
    assert "assumed: the mean of 2 ranges, for 1 range not listed yet" in words(files)


def test_a_range_with_far_fewer_files_than_the_others_is_warned_about(tmp_path):
    files = CampaignFiles(tmp_path, ranges=4)
    files.listed(0)
    files.listed(1)
    assert "far fewer" not in words(files)
    name = files.listed(2, files=2)
    assert f"WARNING range {name} has 2 files, far fewer than the others" in words(files)
    assert f"delete {files.paths.manifest(name)} to list it again" in words(files)


def test_the_peak_counts_ranges_staged_ahead_and_the_shards_of_all(tmp_path):
    copied = ("source.prefetch_ranges=3", "source.copy_local=true")
    files = CampaignFiles(tmp_path, ranges=4, overrides=copied)
    for index in range(4):
        files.listed(index)
    peak = peak_disk(files.campaign, volume_of(files), Ratios(0.5, 0.1, 2.0))
    assert (peak.raw, peak.spills, peak.shards) == (3 * RAW, 6 * RAW, round(0.6 * 4 * RAW))
    assert peak.more == peak.raw + peak.spills + peak.shards - peak.taken
    assert "temporary files of 3 ranges" in words(files)
    in_place = CampaignFiles(tmp_path, ranges=4, overrides=copied[:1])
    assert peak_disk(in_place.campaign, volume_of(files), Ratios(0.5, 0.1, 2.0)) == replace(
        peak, raw=0, saved=3 * RAW
    )
    assert "none, files are read where they are (source.copy_local); saved: " in words(in_place)


def test_ratios_are_measured_in_the_ranges_that_are_split(tmp_path):
    files = CampaignFiles(tmp_path, ranges=4)
    files.claim()
    assert measure_ratios(files.campaign, files_of(files.campaign)[0]) == Ratios()
    files.split(0)
    found = measure_ratios(files.campaign, files_of(files.campaign)[0])
    # The fixture's shards take 100 bytes an event in each of two files.
    assert found.shards == pytest.approx((EVENTS + 0) * 200 / RAW)
    assert found.outliers == pytest.approx(100 * 200 / RAW)
    # An event: uint64 + float32 + 12 bytes of its own, and 8 + 17 in the table; an item: two float32.
    assert found.spills == pytest.approx((EVENTS * (24 + 25) + 9_400_000 * 8) / RAW)
    assert "measured in 1 split range" in words(files)


def test_what_does_not_fit_is_warned_about(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("source.copy_local=true",))
    files.listed(0, size=10**15)
    assert "raw copies exceed their budget" in words(files)
    assert "does not fit on the disk" in words(files)


def test_a_simulated_campaign_has_no_sizes_until_a_range_is_staged(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("source.uri=synthetic://",))
    text = words(files)
    assert "about 16, of unknown size" in text
    assert "sizes are known once the first range is listed or staged" in text
    assert "synthetic://" in text
    files.listed(0, size=None)
    assert "about 20, of unknown size" in words(files)
    files.split(0, size=None)
    assert volume_of(files).bytes == 2 * RAW
    assert "does not fit" not in words(files)


def test_events_of_one_size_have_no_outlier_jobs(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.laid_out(fixed=4)
    assert "outliers" not in words(files)


def test_a_layout_that_is_none_is_named(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    files.claim()
    files.split(0)
    write_json(files.paths.layout(), {"item": "hits", "events": LAYOUT["events"]})
    with pytest.raises(DataError, match="layout.json: .*delete it and campaign.json"):
        words(files)


def test_locks_that_may_hold_within_one_host_are_warned_about(tmp_path, monkeypatch):
    files = CampaignFiles(tmp_path, ranges=1)
    monkeypatch.setattr(plan, "mount_of", lambda path: Mount(str(path), "lustre", ("rw", "localflock")))
    for folder in (files.paths.results, files.paths.runs):
        assert f"{folder}: on lustre at {folder} with localflock: its locks may hold within one" in words(
            files
        )
    monkeypatch.setattr(plan, "mount_of", lambda path: Mount(str(path), "lustre", ("rw", "flock")))
    assert "locks" not in words(files)


def done(files):
    return {rule: done for rule, (_, done) in files.plan().jobs.items()}


def test_what_is_made_under_this_configuration_is_done(tmp_path):
    files = CampaignFiles(tmp_path, ranges=3)
    files.claim()
    for index in range(2):
        files.trained(files.split(index))
    assert files.plan().jobs["train"] == (3, 2)
    assert done(files) == {
        "list": 2,
        "stage": 2,
        "split": 2,
        "train": 2,
        "outliers_consolidated": 0,
        "train_outliers": 0,
    }


def test_stale_shards_and_receipts_are_to_do(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.claim()
    files.trained(files.split(0))
    files.trained(files.split(1, data="other"))
    files.consolidated(5)
    assert [item.state for item in files.state.ranges[:2]] == [State.TRAINED, State.STALE]
    found = done(files)
    assert (found["split"], found["stage"], found["train"]) == (1, 1, 1)
    assert found["outliers_consolidated"] == 1
    receipt = files.paths.receipt(files.name(0))
    write_json(receipt, {**read_json(receipt), "fingerprint": "other"})
    assert done(files)["train"] == 0
