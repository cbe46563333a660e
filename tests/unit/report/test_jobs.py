"""Jobs that are done agree with the states of `crpipe status`."""

from campaign_files import CampaignFiles
from crpipe.core.files import read_json, write_json
from crpipe.report.plan import count_jobs
from crpipe.report.state_types import State
from crpipe.report.status import collect


def done(files):
    return {rule: done for rule, (_, done) in count_jobs(files.campaign).items()}


def test_what_is_made_under_this_configuration_is_done(tmp_path):
    files = CampaignFiles(tmp_path, ranges=3)
    files.claim()
    for index in range(2):
        files.trained(files.split(index))
    assert count_jobs(files.campaign)["train"] == (3, 2)
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
    states = [item.state for item in collect(files.campaign).ranges[:2]]
    assert states == [State.TRAINED, State.STALE]
    found = done(files)
    assert (found["split"], found["stage"], found["train"]) == (1, 1, 1)
    assert found["outliers_consolidated"] == 1
    receipt = files.paths.receipt(files.name(0))
    write_json(receipt, {**read_json(receipt), "fingerprint": "other"})
    assert done(files)["train"] == 0
