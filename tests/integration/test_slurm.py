"""The campaign on a real Slurm: undisturbed, and through a cancelled job, a killed head, and a signal."""

import os
import signal

import pytest

from integration.slurm.campaigns import (
    SLURM,
    attempts,
    configure,
    finished_in,
    hurry,
    in_training,
    linger,
    never_two_at_once,
    on_cluster,
    sha256,
    told_by,
)
from integration.slurm.cluster import wait_for
from runs import LINKS, RANGES, Campaign

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
FIRST, SECOND, THIRD = RANGES


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory):
    """A campaign from the first listing to the figures, on its way while the other tests run."""
    begun = Campaign.begin(tmp_path_factory.mktemp("whole") / "begun")
    campaign = on_cluster(begun, cluster, tmp_path_factory.mktemp("whole") / "campaign")
    configure(campaign, **{"source.prefetch_ranges": 3})
    with campaign.running(SLURM) as head:
        yield campaign, head


def test_a_campaign_comes_through_a_cancelled_job_a_killed_head_and_a_signal(
    whole, cluster, faulty, undisturbed, tmp_path
):
    campaign = on_cluster(faulty, cluster, tmp_path / "campaign")
    (campaign.folder / "slow").write_text("0.25")
    with campaign.running(f"{SLURM} train_all") as head:
        cluster.call("scancel", in_training(campaign, cluster, FIRST))
        orphan = in_training(campaign, cluster, SECOND, 180)
        linger(campaign)
        os.kill(head.pid, signal.SIGKILL)
    with campaign.running(f"{SLURM} train_all") as head:
        wait_for(
            lambda: f"cancelling its Slurm jobs {orphan}" in told_by(campaign), "the orphan is cancelled", 60
        )
        (campaign.folder / "slow").write_text("0.25")
        cluster.call("scancel", "--signal=TERM", in_training(campaign, cluster, THIRD, 180))
        hurry(campaign)
        assert finished_in(head, 180)
    assert sha256(campaign, THIRD) == sha256(undisturbed, THIRD)
    never_two_at_once(campaign)
    ends = {name: [how for *_, how in tries] for name, tries in attempts(campaign).items()}
    assert ends == {name: ["Interrupted", "finished"] for name in RANGES}


def test_everything_through_slurm_is_what_it_is_without(whole, finished):
    campaign, head = whole
    assert finished_in(head, 400), told_by(campaign)[-3000:]
    assert campaign.receipts() == finished.receipts()
    assert len(campaign.receipts()) == len(LINKS)
    assert (campaign.run / "evaluation" / "outliers" / "metrics.json").exists()
    through_slurm = {
        row["verb"] for row in campaign.journal() if row["what"] == "start" and "slurm_job" in row
    }
    assert through_slurm == {"stage", "split", "consolidate", "train", "evaluate"}


def interrupt(head):
    """Press Ctrl-C."""
    head.send_signal(signal.SIGINT)
    head.wait(timeout=60)


def test_status_shows_the_queue_of_a_living_campaign(cluster, faulty, tmp_path):
    campaign = on_cluster(faulty, cluster, tmp_path / "campaign")
    (campaign.folder / "slow").write_text("0.25")
    with campaign.running(f"{SLURM} train_all") as head:
        job = in_training(campaign, cluster, FIRST)
        linger(campaign)  # or it may end before the head that is stopped has cancelled it
        told = " ".join(campaign.crpipe("status").stdout.split())  # long lines are wrapped
        interrupt(head)
    assert f"train {FIRST}: running, n" in told
    assert f"(job {job})" in told
    wait_for(lambda: job not in {number for number, *_ in cluster.jobs()}, "its jobs are cancelled", 30)
    assert attempts(campaign)[FIRST][0][2] == "Interrupted"
