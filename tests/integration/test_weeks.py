"""What a campaign of weeks needs: retention, a copy that goes on elsewhere, two runs on one data set."""

import re
import shutil
import time

import pytest
import yaml

from crpipe.config.loading import read_tree
from runs import (
    LINKS,
    RANGES,
    REPOSITORY,
    TINY,
    Campaign,
    bash,
    children,
    job_of,
    kill,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)
PAGE = (REPOSITORY / "docs" / "weeks.md").read_text()


def test_after_clean_the_same_command_does_nothing_and_nothing_is_trained_again(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    campaign.change(train={"keep_links": 1})
    done = campaign.crpipe("clean", "--yes")
    assert done.returncode == 0, done.stderr
    assert "1 file deleted" in done.stdout
    assert campaign.checkpoints().keys() == {*LINKS[1:]}
    assert "Nothing to be done" in campaign.snakemake().stdout
    done = campaign.crpipe("check")
    assert done.returncode == 0, done.stdout
    assert f"{RANGES[0]}: its checkpoint was deleted by `crpipe clean`" in done.stdout
    # A damaged shard: its range is made again, which runs its link again, whose checkpoint is gone.
    shutil.rmtree(campaign.results / "shards" / RANGES[0])
    campaign.snakemake(f"results/shards/{RANGES[0]}/manifest.json train_all")
    assert campaign.receipts() == finished.receipts()
    assert campaign.checkpoints().keys() == {*LINKS[1:]}
    log = (campaign.run / "logs" / "train" / f"{RANGES[0]}.log").read_text()
    assert "already trained; `crpipe clean` deleted its checkpoint" in log
    assert "Nothing to be done" in campaign.snakemake("train_all").stdout


def test_a_synced_run_goes_on_in_an_empty_directory_and_ends_in_the_same_bytes(finished, split, tmp_path):
    lost, second = split.copy(tmp_path / "lost"), tmp_path / "second"
    lost.change(sync={"to": str(second)})
    with lost.running("train_all --cores 1") as head:
        snapshots = lost.run / "store" / RANGES[1]
        assert wait_for(lambda: list(snapshots.glob("snapshot-*.pt")), head)
        job = job_of(head, ("train",))
        assert job.environ()["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
        for process in [head, *children(head), *([job] if job else [])]:
            kill(process)
        head.wait()
    done = lost.crpipe("sync")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(lost.folder)
    found = Campaign.begin(tmp_path / "found")
    done = found.crpipe("sync", "--from", str(second))
    assert done.returncode == 0, done.stderr
    assert list((found.run / "store" / RANGES[1]).glob("snapshot-*.pt"))
    found.snakemake("outliers_consolidated train_all")
    assert found.crpipe("check").returncode == 0
    assert found.checkpoints() == {link: finished.checkpoints()[link] for link in RANGES}
    logs = [path.read_text() for path in (found.run / "logs" / "train").glob("*.log")]
    assert any("resume" in log for log in logs)  # of its own job, or of the one before it
    assert "already trained" in (found.run / "logs" / "train" / f"{RANGES[0]}.log").read_text()


def test_two_runs_on_the_same_results_at_the_same_time_end_as_alone(finished, split, tmp_path):
    both = [Campaign.begin(tmp_path / name) for name in ("one", "two")]
    shutil.copytree(split.results, tmp_path / "shared")
    for campaign in both:
        path = campaign.folder / "config" / "tiny.yaml"
        path.write_text(path.read_text() + f"results: {tmp_path / 'shared'}\n")
    with both[0].running("train_all --cores 1") as first, both[1].running("train_all --cores 1") as other:
        heads = [first.wait(), other.wait()]
    assert heads == [0, 0], "\n".join((campaign.folder / "head.log").read_text() for campaign in both)
    for campaign in both:
        assert campaign.checkpoints() == {link: finished.checkpoints()[link] for link in RANGES}
    begun = [campaign.times("start", "train")[RANGES[0]] for campaign in both]
    ended = [campaign.times("finished", "train")[RANGES[-1]] for campaign in both]
    assert max(begun) < min(ended)


def test_every_command_of_the_page_runs_as_it_stands(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    default = campaign.folder / "config" / "config.yaml"
    default.write_text(yaml.safe_dump(read_tree([default, TINY])[0]))
    (example,) = re.findall(r"```yaml\n(# crpipe.yaml.*?)```", PAGE, re.DOTALL)
    (campaign.folder / "crpipe.yaml").write_text(example.replace("/backup/crpipe", str(tmp_path / "second")))

    def run(block):
        return bash(block, campaign.folder, TMUX_TMPDIR=str(tmp_path))

    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL):
        here = block.replace("/backup/crpipe", str(tmp_path / "second"))
        done = run(here.replace(" --profile slurm", ""))
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        if "tmux" in block:
            deadline = time.monotonic() + 120
            while run("tmux list-sessions").returncode == 0:
                assert time.monotonic() < deadline, "workflow and sync of a finished run end by themselves"
                time.sleep(0.2)
    assert campaign.checkpoints().keys() == {*LINKS[1:]}  # the page keeps three
    elsewhere = Campaign(tmp_path / "elsewhere")
    assert elsewhere.receipts() == finished.receipts()
    assert elsewhere.checkpoints() == campaign.checkpoints()
