"""Links of several ranges, rounds, and campaigns that grow: real Snakemake, real jobs, tiny data."""

import json

import pytest

from runs import RANGES, flipped

pytestmark = pytest.mark.timeout(900)

PAIR, REST, WHOLE = "0000000-0000003", "0000004-0000005", "0000000-0000005"
MORE = "0000006-0000007"


def bulk(campaign, names=RANGES):
    ledgers = [json.loads((campaign.results / "ledgers" / f"{name}.json").read_text()) for name in names]
    return sum(ledger["events"]["train"] for ledger in ledgers)


def refused(campaign, words="train_all"):
    done = campaign.snakemake(words, check=False)
    assert done.returncode == 2, done.stdout
    return done.stdout


def figure_of_the_chain(campaign):
    """Draw the only evaluation that there is."""
    assert campaign.crpipe("figures", "--progress").returncode == 0
    return (campaign.run / "figures" / "progress.svg").read_text()


@pytest.fixture(scope="module")
def ended(split, tmp_path_factory):
    """A link for each range, and the outliers; the learning rate has reached its end."""
    campaign = split.copy(tmp_path_factory.mktemp("ended") / "campaign")
    campaign.change(train={"passes_per_link": 1})
    campaign.snakemake("train_outliers")
    return campaign


@pytest.fixture(scope="module")
def level(split, tmp_path_factory):
    """A link for each range and a constant learning rate."""
    campaign = split.copy(tmp_path_factory.mktemp("level") / "campaign")
    campaign.change(train={"schedule": {"shape": "constant"}, "passes_per_link": 1})
    campaign.in_one_process("train_all")
    return campaign


def test_two_ranges_in_a_link_over_two_rounds_are_one_command(begun):
    begun.change(train={"ranges_per_link": 2, "passes": 2, "passes_per_link": 1})
    begun.snakemake()
    links = [PAIR, REST, f"{PAIR}.2", f"{REST}.2", "outliers"]
    receipts = begun.receipts(links)
    assert [receipt["ranges"] for receipt in receipts.values()] == [
        [*RANGES[:2]], [RANGES[2]], [*RANGES[:2]], [RANGES[2]], []
    ]  # fmt: skip
    assert [receipt["round"] for receipt in receipts.values()] == [1, 1, 2, 2, 2]
    shas = [receipt["sha256"] for receipt in receipts.values()]
    assert [receipt["parent"] for receipt in receipts.values()] == ["", *shas[:-1]]
    ends = [bulk(begun, RANGES[:2]), bulk(begun), bulk(begun) + bulk(begun, RANGES[:2]), 2 * bulk(begun)]
    assert [receipt["events"] for receipt in receipts.values()][:4] == ends
    assert "Nothing to be done" in begun.snakemake().stdout
    assert begun.jobs("train_all outliers_consolidated evaluation") == {}
    assert begun.jobs("progress") == {"evaluate": 4, "progress": 1}
    staged, split, trained = (
        begun.times("start", "stage"),
        *(begun.times("finished", verb) for verb in ("split", "train")),
    )
    assert split[RANGES[0]] < staged[RANGES[1]]  # source.prefetch_ranges is 1: raw copies of one range
    assert staged[RANGES[1]] < trained[PAIR]  # the ranges of one link wait for no training
    text = begun.crpipe("status").stdout
    assert "4 of 4 links trained" in text
    assert f"{REST}.2" in text
    assert "links of the chain trained on, of 5" in figure_of_the_chain(begun)


def test_a_bad_range_inside_a_link_is_skipped_by_name(split, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    campaign.change(train={"ranges_per_link": 0, "passes_per_link": 1})
    shard = campaign.results / "shards" / RANGES[1] / "train-00000.muons.parquet"
    shard.write_bytes(flipped(shard.read_bytes(), shard.stat().st_size // 3))
    done = campaign.snakemake("train_all", check=False)
    assert done.returncode == 1
    assert f"train {WHOLE} (exit 65)" in done.stdout
    assert RANGES[1] in done.stdout[done.stdout.index(f"train {WHOLE} (exit 65)") :]
    assert f"Training waits for link {WHOLE} (1 of 1 still to do)." in done.stdout
    campaign.change(ranges={"skip": [RANGES[1]]})
    campaign.snakemake("train_all")
    receipt = campaign.receipts([WHOLE])[WHOLE]
    assert receipt["ranges"] == [RANGES[0], RANGES[2]]
    assert receipt["events"] == bulk(campaign, [RANGES[0], RANGES[2]])
    assert campaign.jobs("train_all") == {}


def test_ranges_are_added_to_a_finished_campaign_with_the_key_that_the_refusal_prints(ended, tmp_path):
    campaign = ended.copy(tmp_path / "campaign")
    before = campaign.contents()
    campaign.change(ranges={"last": 7})
    told = refused(campaign)
    assert "\n  train.schedule.horizon_ranges: 3\n" in told
    assert "is trained at the final rate (train.schedule.decay_to: 0.05)" in told
    assert campaign.contents() == before
    campaign.change(train={"schedule": {"horizon_ranges": 3}})
    assert campaign.jobs("train_all") == dict.fromkeys(
        ("list_range", "stage", "split", "train", "train_all"), 1
    )
    campaign.snakemake("train_outliers")
    receipts = campaign.receipts([*RANGES, MORE, "outliers"])
    assert {name: receipts[name] for name in RANGES} == ended.receipts(RANGES)
    assert receipts[MORE]["parent"] == receipts[RANGES[2]]["sha256"]
    assert receipts["outliers"]["parent"] == receipts[MORE]["sha256"]
    assert campaign.jobs("train_outliers") == {}


def test_a_constant_learning_rate_accepts_more_ranges_and_then_more_rounds(level, tmp_path):
    campaign = level.copy(tmp_path / "campaign")
    campaign.change(ranges={"last": 7})
    assert campaign.jobs("train_all") == dict.fromkeys(
        ("list_range", "stage", "split", "train", "train_all"), 1
    )
    campaign.change(ranges={"last": 5}, train={"passes": 2})
    assert campaign.jobs("train_all") == {"train": 3, "train_all": 1}
    campaign.change(ranges={"last": 7})
    campaign.snakemake("train_all")
    chain = [*RANGES, MORE]
    receipts = campaign.receipts([*chain, *(f"{name}.2" for name in chain)])
    assert {name: receipts[name] for name in RANGES} == level.receipts(RANGES)
    assert receipts[f"{RANGES[0]}.2"]["parent"] == receipts[MORE]["sha256"]
    assert receipts[f"{MORE}.2"]["events"] == 2 * bulk(campaign, chain)
    assert campaign.jobs("train_all") == {}
