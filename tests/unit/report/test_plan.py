from campaign_files import CampaignFiles
from crpipe.report.plan import measure, peak_disk, render_plan


def test_nothing_listed_is_an_estimate_from_the_configuration(tmp_path):
    files = CampaignFiles(tmp_path, ranges=5, overrides=("source.range_gib=3",))
    volume = measure(files.config)
    assert (volume.ranges, volume.listed, volume.bytes) == (5, 0, 15 << 30)
    text = render_plan(files.config)
    assert "about 15.0 GiB" in text
    assert "5 ranges not listed yet" in text


def test_manifests_are_taken_as_they_are(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.listed(0, size=10 << 20)
    files.listed(1, size=30 << 20)
    volume = measure(files.config)
    assert (volume.files, volume.bytes, volume.largest) == (20, 400 << 20, 300 << 20)
    text = render_plan(files.config)
    assert "not listed" not in text
    assert "list 2 2" in " ".join(text.split())


def test_the_peak_counts_ranges_staged_ahead_and_the_shards_as_large_as_they_came_out(tmp_path):
    files = CampaignFiles(tmp_path, ranges=4, overrides=("source.look_ahead=3",))
    for index in range(4):
        files.listed(index)
    before = peak_disk(files.config, measure(files.config))
    assert before.raw == 3 * (400 << 20)
    assert before.shards == round(0.75 * (1600 << 20))
    assert before.spills == round(1.15 * before.raw)
    assert before.more == before.raw + before.spills + before.shards - before.taken
    text = " ".join(render_plan(files.config).split())
    assert "splitting 1.35 GiB at most: temporary files of 3 ranges" in text
    files.split(0)
    assert peak_disk(files.config, measure(files.config)).shards < before.shards


def test_what_does_not_fit_is_warned_about(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("source.range_gib=1e9",))
    text = render_plan(files.config)
    assert "raw copies exceed their budget" in text
    assert "does not fit on the disk" in text


def test_a_small_synthetic_campaign_fits_without_a_warning(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("source.uri=synthetic://",))
    text = render_plan(files.config)
    assert "WARNING" not in text
    assert "synthetic://" in text
