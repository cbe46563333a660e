"""One campaign: the recorded layout before the reader's, and what its hashes follow from."""

import pytest

from campaign_files import CampaignFiles
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.files import write_json
from crpipe.core.paths import OUTLIERS


def test_the_recorded_layout_comes_before_that_of_the_reader(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    ways = ("recorded", "either", "reader")
    assert [Campaign.open(files.config, way).item for way in ways] == ["items", "muons", "muons"]
    files.claim()
    assert [Campaign.open(files.config, way).item for way in ways] == ["hits", "hits", "muons"]


def test_layout_and_side_tables_are_part_of_both_digests(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.claim()
    campaigns = [Campaign.open(files.config, "recorded")]
    files.laid_out(fixed=3)
    campaigns.append(Campaign.open(files.config, "recorded"))
    row = {"uri": "u", "path": "tables/geometry", "size": 1, "sha256": "0" * 64}
    write_json(files.paths.tables(), {"geometry": row})
    campaigns.append(Campaign.open(files.config, "recorded"))
    assert len({each.data for each in campaigns}) == len({each.fingerprint for each in campaigns}) == 3
    assert campaigns[0].chain.names == (files.name(0), files.name(1), OUTLIERS)
    assert campaigns[1].chain.names == (files.name(0), files.name(1))
    with pytest.raises(DataError, match="the copy of table geometry is missing"):  # once it is needed
        _ = campaigns[2].tables


def test_the_reader_is_asked_where_no_job_has_recorded_a_layout(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    assert Campaign.open(files.config, "either").data
    unnamed = CampaignFiles(tmp_path, ranges=2, overrides=('source.reader=""',))
    with pytest.raises(ConfigError, match="source.reader"):
        Campaign.open(unnamed.config, "either")


def test_a_run_alone_is_the_same_campaign_as_its_configuration(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("split.outlier_above=7",))
    files.claim()
    files.trained(files.split(0))
    configured, alone = Campaign.open(files.config, "recorded"), Campaign.of_run(files.paths.run_dir())
    for name in ("paths", "known_layout", "data_keys", "run_keys", "data", "fingerprint", "item"):
        assert getattr(alone, name) == getattr(configured, name)
    assert alone.config.split.outlier_above == 7
    assert (alone.ranges, alone.chain.names) == ((files.name(0),), (files.name(0),))


@pytest.mark.parametrize("last", [3, "auto"])
def test_a_run_is_finished_when_every_link_has_its_receipt(tmp_path, last):
    places = {"results": str(tmp_path / "results"), "runs": str(tmp_path / "runs")}
    config = validate({**places, "ranges": {"last": last, "size": 2}})

    def is_finished():
        return Campaign.open(config, layout="recorded").is_finished()

    paths = config.paths()
    for name in ("0000000-0000001", "0000002-0000003", "outliers"):
        assert not is_finished()
        paths.receipt(name).parent.mkdir(parents=True, exist_ok=True)
        paths.receipt(name).write_text("{}")
    assert is_finished() is (last == 3)  # whose files nobody has counted, it may go on
