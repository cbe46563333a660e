"""A range that stays bad: `ranges.on_failure` stops there, or goes on without it and says what is missing."""

import json
import os
import re
import shutil

import pytest

from integration.test_crashes import mounted
from named import READERS
from raw_files import write_parquet
from runs import Campaign, kill, wait_for
from same_results import LISTINGS, products

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RANGES = tuple(f"{first:07}-{first + 1:07}" for first in (0, 2, 4, 6))
BAD = RANGES[1]
FILE = "1.parquet"
KEPT = tuple(name for name in RANGES if name != BAD)
LEFT_OUT = f"skipped: {BAD}"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A campaign of four ranges of one file each, in which nothing was done yet."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("good") / "campaign")
    for number, name in enumerate(RANGES):
        folder = campaign.folder / "raw" / name
        folder.mkdir(parents=True)
        write_parquet(folder / FILE, [number, 0, 45, 2, 3] * 10, seed=number)
    campaign.change(
        source={"uri": "raw/{range}/*.parquet", "reader": READERS["bundles"], "prefetch_ranges": 2},
        ranges={"last": 7},
        train={"passes_per_link": 1},
    )
    return campaign


def cut(folder):
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-100])


def scramble(folder):
    """Keep the file's ends, so that it is copied: its pages are wrong."""
    data = bytearray((folder / FILE).read_bytes())
    data[8 : len(data) // 2] = os.urandom(len(data) // 2 - 8)
    (folder / FILE).write_bytes(data)


def deny(folder):
    folder.chmod(0)


DAMAGES = {
    "cut": (cut, "stage", {}),
    "scrambled": (scramble, "split", {}),
    "missing": (shutil.rmtree, "list", {}),
    "set aside": (scramble, "split", {"on_bad_file": "quarantine"}),
}
if os.geteuid():  # root may list everything
    DAMAGES["denied"] = (deny, "list", {})


@pytest.fixture
def damaged(good, tmp_path):
    """Copy the campaign, with one range that is bad, and on_failure as it is asked for."""

    def begin(how="cut", name="campaign", bad=(BAD,), **ranges):
        campaign = good.copy(tmp_path / name)
        damage, _, keys = DAMAGES[how]
        campaign.change(ranges=ranges, source=keys)
        for each in bad:
            damage(campaign.folder / "raw" / each)
        return campaign

    return begin


def run(campaign, words="train_all"):
    """Run the command of the page; give the lines that it prints."""
    with campaign.running(words, "crpipe") as head:
        head.wait(900)
    return head.returncode, (campaign.folder / "head.log").read_text()


def record(campaign, name=BAD):
    return json.loads((campaign.results / "skipped" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def named(good, tmp_path_factory):
    """The products of the campaign that names the range in ``ranges.skip`` from the beginning."""
    campaign = good.copy(tmp_path_factory.mktemp("named") / "campaign")
    campaign.change(ranges={"skip": [BAD]})
    campaign.snakemake("all")
    return products(campaign, without=LISTINGS)


@pytest.mark.parametrize("how", DAMAGES)
def test_whatever_is_wrong_with_it_the_others_are_split(damaged, how):
    campaign = damaged(how, on_failure="skip")
    done = campaign.snakemake("outliers_consolidated", check=False)
    assert done.returncode == 1
    assert f"{BAD} is skipped from now on" in done.stdout
    assert "  The same command continues where this one stopped:" in done.stdout
    about = record(campaign)
    assert (about["verb"], about["attempts"]) == (DAMAGES[how][1], 3)
    assert about["files"] == (None if about["verb"] == "list" else 1)
    done = campaign.snakemake("outliers_consolidated")
    assert LEFT_OUT in done.stdout
    assert sorted(path.stem for path in (campaign.results / "ledgers").glob("*.json")) == [*KEPT]
    assert not (campaign.results / "staged" / BAD).exists()
    assert "Nothing to be done" in campaign.snakemake("outliers_consolidated").stdout
    checked = campaign.crpipe("check")
    assert checked.returncode == 0, checked.stdout
    assert f"{BAD}: skipped, nothing of it is trained on" in checked.stdout


def test_one_command_goes_on_without_it_to_the_bytes_of_ranges_skip(damaged, named):
    campaign = damaged(on_failure="skip")
    code, text = run(campaign, "all")
    assert code == 0, text
    assert text.count(f"{LEFT_OUT} (1 file, ") == 3  # once it is, when the workflow begins again, at its end
    assert products(campaign, without=LISTINGS) == named
    receipts = campaign.receipts((*KEPT, "outliers"))
    assert [receipt["ranges"] for receipt in receipts.values()] == [*([name] for name in KEPT), []]
    about = record(campaign)
    for verb in ("status", "summary"):
        assert f"{BAD} (1 file" in " ".join(campaign.crpipe(verb).stdout.replace("│", "").split())
        assert json.loads(campaign.crpipe(verb, "--json").stdout)["given_up"] == [about]
    assert f"{BAD} (1 file" in (campaign.run / "report.html").read_text()
    code, text = run(campaign, "all")
    assert (code, text.count("Nothing to be done"), text.count(LEFT_OUT)) == (0, 1, 2)
    assert products(campaign, without=LISTINGS) == named


def test_stop_blocks_what_follows_after_one_job(damaged):
    campaign = damaged()
    done = campaign.snakemake("train_all", check=False)
    assert done.returncode == 1
    assert f"Training waits for range {BAD} (3 of 4 still to do)." in done.stdout
    assert "Fix the cause; the same command continues where this one stopped:" in done.stdout
    assert "skipped" not in done.stdout
    assert not (campaign.results / "skipped").exists()
    failed = [row for row in campaign.journal() if row["what"] == "failed"]
    # Once in the process that works before any job, and once in its job.
    assert [(row["verb"], row["range"]) for row in failed] == 2 * [("stage", BAD)]


def test_a_head_that_is_killed_at_any_moment_changes_nothing(damaged, named):
    """Before the last attempt, and once the record is there; the attempts of a dead head do not count."""
    campaign = damaged(on_failure="skip")

    def has_failed():
        return any(row["what"] == "failed" for row in campaign.journal())

    for moment in (has_failed, lambda: list((campaign.results / "skipped").glob("*.json"))):
        with campaign.running("all") as head:
            assert wait_for(moment, head)
            kill(head)
    assert record(campaign)["attempts"] == 3
    campaign.snakemake("all")
    assert products(campaign, without=LISTINGS) == named


def test_one_more_than_max_skipped_stops_and_names_them_all(damaged):
    bad = (BAD, RANGES[2])
    campaign = damaged(bad=bad, on_failure="skip")
    code, text = run(campaign, "outliers_consolidated")
    assert code == 1
    told = text[text.index("2 ranges stay bad, and ranges.max_skipped is 1: none of them is skipped now") :]
    for name in bad:
        assert re.search(rf"{name} \(1 file, .*\): stage failed in 3 attempts: .*no whole Parquet", told)
    assert not (campaign.results / "skipped").exists()
    campaign.change(ranges={"max_skipped": 2})
    code, text = run(campaign, "outliers_consolidated")
    assert code == 0, text
    assert text.count("skipped: ") == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_of_one_range_leaves_nothing_out(good, tmp_path):
    campaign = good.copy(tmp_path / "campaign")
    campaign.change(ranges={"on_failure": "skip"})
    small = campaign.results / "shards" / BAD
    with mounted(small, "size=8k"):
        done = campaign.snakemake("outliers_consolidated", check=False)
    assert done.returncode == 74
    assert f"{BAD} is not skipped (ranges.on_failure): its files are not what is wrong" in done.stdout
    assert not (campaign.results / "skipped").exists()
    campaign.snakemake("outliers_consolidated")
    assert (campaign.results / "ledgers" / f"{BAD}.json").exists()


def test_a_wrong_reader_leaves_nothing_out(damaged):
    campaign = damaged(on_failure="skip", max_skipped=9)
    campaign.change(source={"reader": READERS["bundles_converted"]})
    done = campaign.snakemake("train_all", check=False)
    assert done.returncode == 1
    assert done.stdout.count("no other range is split, so the source or the reader may be wrong for all") >= 2
    assert not (campaign.results / "skipped").exists()


def test_a_range_that_is_taken_back_is_trained_on_like_one_that_ranges_skip_names_no_more(
    damaged, good, tmp_path
):
    campaign = damaged(on_failure="skip")
    assert run(campaign)[0] == 0
    shutil.copy(good.folder / "raw" / BAD / FILE, campaign.folder / "raw" / BAD / FILE)
    (campaign.results / "manifests" / f"{BAD}.parquet").unlink()
    (campaign.results / "skipped" / f"{BAD}.json").unlink()
    campaign.snakemake("train_all")
    never = good.copy(tmp_path / "never")
    never.snakemake("train_all")
    assert campaign.receipts(RANGES) == never.receipts(RANGES)
