"""What is finished stays finished, whatever the times of files say, and whatever starts a job for it."""

import json
import os
import random
import re
import shutil
import subprocess
import time

import pytest

from crpipe.campaign.raw_files import read_manifest, write_manifest
from named import READERS
from raw_files import write_parquet
from runs import RANGES, Campaign, job_of, kill, wait_for

pytestmark = pytest.mark.timeout(900)
RANGE = RANGES[0]
DAY = 86_400


def made(campaign):
    return [
        path for top in ("results", "runs") for path in (campaign.folder / top).rglob("*") if path.is_file()
    ]


def touch_in_random_order(campaign):
    for place, path in enumerate(random.Random(7).sample(files := made(campaign), len(files))):
        os.utime(path, (1e9 + place, 1e9 + place))


def date_zero(campaign):
    for path in made(campaign):
        os.utime(path, (0, 0))


def date_one_of_each_kind_tomorrow(campaign):
    kinds = {(path.parent.name.split("-")[0], path.suffix): path for path in made(campaign)}
    for path in kinds.values():
        os.utime(path, (time.time() + DAY, time.time() + DAY))


@pytest.mark.parametrize("change", [touch_in_random_order, date_zero, date_one_of_each_kind_tomorrow])
def test_times_decide_nothing(finished, tmp_path, change):
    campaign = finished.copy(tmp_path / "campaign")
    change(campaign)
    assert "Nothing to be done" in campaign.snakemake().stdout
    assert campaign.contents() == finished.contents()
    assert campaign.journal() == finished.journal()


COPIES = {
    "cp -r": "cp -r . {}/copy",
    "without notes": "mkdir {0}/copy && tar --exclude=./.snakemake -cf - . | tar -xmf - -C {0}/copy",
    "rsync without times": "rsync -rl . {}/copy",
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_finished_campaign_has_nothing_to_do(finished, tmp_path, how):
    if how.startswith("rsync") and not shutil.which("rsync"):
        pytest.skip("apt-get install rsync")
    subprocess.run(COPIES[how].format(tmp_path), shell=True, cwd=finished.folder, check=True)
    copy = Campaign(tmp_path / "copy")
    assert "Nothing to be done" in copy.snakemake().stdout
    assert copy.contents() == finished.contents()


def test_a_copy_without_times_goes_on_to_the_same_bytes(split, finished, tmp_path):
    """Data that are finished are taken as they are; only what is missing is made."""
    command = COPIES["without notes"].format(tmp_path)
    subprocess.run(command, shell=True, cwd=split.folder, check=True)
    copy = Campaign(tmp_path / "copy")
    assert {"stage", "split", "list_range"}.isdisjoint(copy.jobs(""))
    copy.snakemake("train_outliers")
    assert copy.receipts() == finished.receipts()


def change(path, **keys):
    """Write a JSON file with other values, and with the times that it had."""
    before = path.stat()
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}, indent=1, sort_keys=True) + "\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_follows_from_another_checkpoint_is_trained_and_evaluated_again(finished, tmp_path):
    """Only the jobs of what was asked for: data alone never train."""
    campaign = finished.copy(tmp_path / "campaign")
    change(campaign.run / "ranges" / f"{RANGES[1]}.json", sha256="0" * 64)
    assert campaign.jobs("train_all") == {"train": 1, "train_all": 1}
    assert campaign.jobs("evaluation") == {"train": 1, "train_outliers": 1, "evaluate": 1, "evaluation": 1}
    assert campaign.jobs("outliers_consolidated") == {}


def test_an_evaluation_of_another_checkpoint_is_made_again(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    change(campaign.run / "evaluation" / "outliers" / "metrics.json", checkpoint="0" * 64)
    assert campaign.jobs("evaluation") == {"evaluate": 1, "evaluation": 1}


def test_outliers_merged_from_others_are_merged_again(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    path = campaign.results / "outliers" / "consolidated" / "manifest.json"
    change(path, inputs={**json.loads(path.read_text())["inputs"], RANGE: "0"})
    campaign.snakemake("outliers_consolidated")
    assert path.read_bytes() == (finished.folder / path.relative_to(campaign.folder)).read_bytes()


def test_a_link_does_not_go_on_with_a_damaged_manifest(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    manifest = campaign.results / "shards" / RANGES[1] / "manifest.json"
    good = manifest.read_bytes()
    change(manifest, note="another")
    done = campaign.snakemake("train_all", check=False)
    assert done.returncode == 1
    assert f"its hash is not the recorded one; see what to type: crpipe check {RANGES[1]}" in done.stdout
    manifest.write_bytes(good)
    campaign.snakemake("train_all")
    assert campaign.contents() == finished.contents()


@pytest.fixture(scope="module")
def from_files(tmp_path_factory):
    """A campaign of one range of three raw files, split; one of them is lost in the source since."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("files") / "campaign")
    folder = campaign.folder / "raw" / RANGE
    folder.mkdir(parents=True)
    for number in range(3):
        write_parquet(folder / f"{number}.parquet", [number, 0, 45, 2, 3] * 10, seed=number)
    campaign.change(
        source={
            "uri": "raw/{range}/*.parquet",
            "reader": READERS["bundles"],
            "on_bad_file": "quarantine",
            "max_quarantined": 5,
        },
        ranges={"last": 1},
    )
    campaign.snakemake("outliers_consolidated")
    (folder / "1.parquet").unlink()
    return campaign


FORCED = ("--forceall", "-R stage", "-R split")


@pytest.mark.parametrize("words", FORCED)
def test_a_forced_job_adopts_what_is_finished(from_files, tmp_path, words):
    campaign = from_files.copy(tmp_path / "campaign")
    campaign.snakemake(f"outliers_consolidated {words}")
    ledger = json.loads((campaign.results / "ledgers" / f"{RANGE}.json").read_text())
    assert ledger["events"]["listed"] == 150
    assert campaign.contents() == from_files.contents()


def test_a_verb_that_is_called_by_hand_adopts_what_is_finished(from_files, tmp_path):
    campaign = from_files.copy(tmp_path / "campaign")
    (campaign.results / "manifests" / f"{RANGE}.parquet").unlink()
    for verb in ("list", "stage", "split"):
        done = campaign.crpipe(verb, RANGE)
        assert done.returncode == 0, done.stderr
        assert "already split" in done.stderr
    (campaign.results / "staged" / f"{RANGE}.parquet").unlink()
    assert campaign.contents() == from_files.contents()


def test_another_listing_of_a_finished_range_is_refused_and_the_range_stays(from_files, tmp_path):
    campaign = from_files.copy(tmp_path / "campaign")
    path = campaign.results / "manifests" / f"{RANGE}.parquet"
    entries = read_manifest(path)
    path.unlink()
    write_manifest(path, entries[:1] + entries[2:], 2)
    os.utime(path, (0, 0))
    done = campaign.snakemake("outliers_consolidated", check=False)
    assert done.returncode == 1
    assert "1.parquet: gone" in done.stdout
    shutil.copy(from_files.results / "manifests" / path.name, path)
    campaign.snakemake("outliers_consolidated")
    assert campaign.contents() == from_files.contents()


def test_a_range_that_a_person_removed_is_made_from_what_the_source_has(from_files, tmp_path):
    campaign = from_files.copy(tmp_path / "campaign")
    done = campaign.crpipe("stage", RANGE)
    subprocess.run(re.search(r"rm -rf .*", done.stderr)[0], shell=True, cwd=campaign.folder, check=True)
    campaign.snakemake("outliers_consolidated")
    ledger = json.loads((campaign.results / "ledgers" / f"{RANGE}.json").read_text())
    assert ledger["events"]["listed"] == 100


@pytest.mark.parametrize("moment", ["list", "stage", "split"])
def test_a_forced_job_that_is_killed_loses_nothing(from_files, tmp_path, moment):
    campaign = from_files.copy(tmp_path / "campaign")
    with campaign.running("outliers_consolidated --forceall --cores 1") as head:
        job = wait_for(lambda: job_of(head, [moment]), head)
        assert job
        kill(head)
        kill(job)
    campaign.snakemake("outliers_consolidated")
    assert campaign.contents() == from_files.contents()
