"""One campaign: the recorded layout before the reader's, and what its hashes follow from."""

import pytest

from campaign_files import CampaignFiles, write_chain
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config, validate
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

    assert not is_finished()
    counted = validate({**places, "ranges": {"last": 3, "size": 2}})
    write_chain(Campaign.open(counted, layout="recorded"))
    assert is_finished() is (last == 3)  # whose files nobody has counted, it may go on
    counted.paths().receipt("outliers").unlink()
    assert not is_finished()


def test_links_of_another_chain_are_trained_again(tmp_path):
    def replaced(*changes):
        places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs", "ranges.size=2")
        campaign = Campaign.open(load_config((), (*places, "ranges.last=5", *changes)), layout="recorded")
        if not changes:
            write_chain(campaign)
        return campaign.replaced(campaign.receipts()), campaign.is_finished()

    second, third = "0000002-0000003", "0000004-0000005"
    assert replaced() == (set(), True)
    assert replaced("ranges.last=7") == ({OUTLIERS}, False)
    assert replaced(f"ranges.skip=[{second}]") == ({third, OUTLIERS}, False)
    assert replaced("ranges.first=2") == ({second, third, OUTLIERS}, False)
    assert replaced("ranges.first=2", "train.pretrained=x.pt") == (set(), True)
    (tmp_path / "runs" / "default" / "ranges" / f"{second}.json").unlink()  # lost: the same bytes again
    assert replaced("ranges.last=5") == (set(), False)
