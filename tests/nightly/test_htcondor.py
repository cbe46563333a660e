"""What an HTCondor pool does to a campaign, one by one, on a real one: `make test-htcondor`, as root.

Each ends in the bytes of the campaign that nothing disturbed, and that ran in the same root without the pool.
"""

import json
import os
import re
import shutil
import signal
import tempfile

import pytest

from debian_root import CACHE, needs_roots
from integration.htcondor.campaigns import (
    HELD,
    HTCONDOR,
    PoolCampaign,
    events,
    evict,
    in_training,
    owned,
    tries,
)
from integration.htcondor.pool import BINDINGS, STRANGE, USER, Pool
from integration.slurm.campaigns import (
    SECOND,
    attempts,
    configure,
    finished_in,
    hurry,
    linger,
    never_two_at_once,
    sha256,
    told_by,
)
from integration.slurm.cluster import wait_for
from runs import RANGES, REPOSITORY, Campaign
from same_results import products

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_roots]
FIRST, MIDDLE, _ = RANGES
PACKS = HTCONDOR.replace("htcondor", "htcondor/packs", 1)
EVICTIONS = 20
TRAIN = f"{HTCONDOR} {SECOND}"


@pytest.fixture(scope="session")
def pool():
    """A running pool; jobs have a /tmp of their own, so that its folder lies elsewhere."""
    CACHE.mkdir(parents=True, exist_ok=True)
    running = Pool(tempfile.mkdtemp(prefix="pool-", dir=CACHE))
    try:
        running.up()
        yield running
    finally:
        running.down()
        shutil.rmtree(running.folder)


@pytest.fixture(scope="session")
def begun(pool):
    """A campaign in which nothing was done yet."""
    home = pool.folder / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    places = [pool.packages / BINDINGS, REPOSITORY / "tests" / "support"]
    variables = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(map(str, places))}
    campaign = Campaign.begin(pool.folder / "begun")
    (campaign.folder / "htcondor").symlink_to(REPOSITORY / "htcondor")
    return owned(PoolCampaign(campaign.folder, variables, pool))


@pytest.fixture(scope="session")
def alone(begun, pool):
    """The same campaign without the pool, in the same root."""
    campaign = begun.copy(pool.folder / "alone")
    campaign.snakemake("--cores 2 train_all")
    return campaign


@pytest.fixture(scope="session")
def faulty(alone, pool):
    """A campaign whose workload meets faults, if there are any; its first range is trained."""
    campaign = alone.copy(pool.folder / "faulty")
    shutil.rmtree(campaign.folder / "runs")
    configure(campaign, model=None, **{"train.workload": "faulty:Faulty"})
    campaign.snakemake(f"--cores 2 runs/tiny/ranges/{FIRST}.json")
    return campaign


@pytest.fixture(scope="session")
def undisturbed(faulty, pool):
    """That campaign, trained without the pool and without any disturbance."""
    campaign = faulty.copy(pool.folder / "undisturbed")
    campaign.snakemake(f"--cores 2 {SECOND}")
    return campaign


@pytest.fixture
def campaign(faulty, pool, request):
    """A copy for one test, which leaves no job behind."""
    copied = faulty.copy(pool.folder / re.sub(r"\W+", "-", request.node.name))
    yield copied
    pool.call("condor_rm", "-all", check=False)
    wait_for(lambda: not pool.call("condor_q", "-af", "ClusterId"), "no job is left", 60)


@pytest.fixture
def slow(campaign):
    """The campaign, in training long enough for a blow from outside."""
    (campaign.folder / "slow").write_text("0.5")
    return campaign


@pytest.fixture
def same(undisturbed):
    def check(campaign, *ways):
        """Assert the final checkpoint, and how the attempts on its range ended."""
        assert sha256(campaign, MIDDLE) == sha256(undisturbed, MIDDLE)
        never_two_at_once(campaign)
        assert [how for *_, how in attempts(campaign)[MIDDLE]] == [*ways, "finished"]

    return check


def test_the_profile_as_shipped_makes_the_same_bytes(begun, alone, pool):
    campaign = begun.copy(pool.folder / "shipped")
    campaign.snakemake(f"{HTCONDOR} outliers_consolidated")
    campaign.snakemake(f"{HTCONDOR} train_all")
    assert products(campaign) == products(alone)


def test_a_campaign_in_packs_goes_through_evictions(begun, pool):
    """Jobs share no file: ranges and links travel in packs, and every job may be evicted at any moment."""
    long = begun.copy(pool.folder / "long")
    configure(long, **{"train.passes_per_link": 60, "train.snapshot_steps": 20})
    campaign = long.copy(pool.folder / "packs")
    long.snakemake("--cores 2 train_all")
    with campaign.running(f"{PACKS} train_all") as head:
        evict(campaign, EVICTIONS, seed=1)
        assert finished_in(head, 900), told_by(campaign)
    assert events(campaign) >= EVICTIONS
    assert products(campaign) == products(long)


def test_slices_end_by_time_and_the_pool_goes_on_with_their_state(begun, pool):
    """No eviction: each slice ends itself with 85, and the pool starts the same command again."""
    link = f"runs/tiny/ranges/{FIRST}.json"
    long = begun.copy(pool.folder / "hours")
    configure(long, **{"train.passes_per_link": 2500, "train.snapshot_steps": 500})
    campaign = long.copy(pool.folder / "slices", CRPIPE_SLICE="30s")
    long.snakemake(f"--cores 2 {link}")
    with campaign.running(f"{PACKS} {link}") as head:
        assert finished_in(head, 600), told_by(campaign)
    rows = [json.loads(line) for line in next(campaign.run.rglob("slices.jsonl")).read_text().splitlines()]
    assert len(rows) > 2
    assert ["its time limit" in row["stopped"] for row in rows] == [True] * (len(rows) - 1) + [False]
    assert all(row["seconds"] < 60 for row in rows)
    assert events(campaign) == 0
    assert sha256(campaign, FIRST) == sha256(long, FIRST)


@pytest.mark.parametrize(("how", "way"), [((), "Interrupted"), (("-fast",), "killed")], ids=["soft", "fast"])
def test_a_job_is_evicted(slow, pool, same, how, way):
    with slow.running(TRAIN) as head:
        pool.call("condor_vacate_job", *how, in_training(slow, MIDDLE))
        hurry(slow)
        assert finished_in(head, 300), told_by(slow)
    same(slow, way)


def test_a_job_is_held_and_released(slow, pool, same):
    with slow.running(TRAIN) as head:
        job = in_training(slow, MIDDLE)
        pool.call("condor_hold", job)
        # HTCondor forgets a job that is released while it is still evicted: it stays idle for ever.
        wait_for(lambda: events(slow, HELD), "the job is held", 60)
        hurry(slow)
        pool.call("condor_release", job)
        assert finished_in(head, 300), told_by(slow)
    same(slow, "Interrupted")


def test_a_job_that_stays_held_is_removed_and_named(slow, pool):
    with slow.running(f"{TRAIN} --htcondor-held-timeout 5 --retries 0") as head:
        pool.call("condor_hold", "-reason", "no disk there", in_training(slow, MIDDLE))
        assert not finished_in(head, 120)
    told = told_by(slow).partition("crpipe: the workflow did not finish.")[2]
    assert f"train {MIDDLE}: HTCondor held the job: no disk there" in told
    wait_for(lambda: not slow.queue(), "the job is gone", 30)


def test_the_starter_of_a_job_is_killed(slow, pool, same):
    with slow.running(TRAIN) as head:
        in_training(slow, MIDDLE)
        pool.daemon("condor_starter").kill()
        hurry(slow)
        assert finished_in(head, 600), told_by(slow)
    same(slow, "killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_schedd_ends_and_is_started_again(slow, pool, same, number):
    with slow.running(TRAIN) as head:
        in_training(slow, MIDDLE)
        before = pool.daemon("condor_schedd")
        before.send_signal(number)
        wait_for(lambda: pool.daemon("condor_schedd") not in (None, before), "there is a new schedd", 120)
        hurry(slow)
        assert finished_in(head, 600), told_by(slow)
    same(slow, *["Interrupted"] * (tries(slow, MIDDLE) - 1))


def test_the_head_is_killed_and_its_jobs_are_removed_by_the_next(slow, same):
    with slow.running(TRAIN) as head:
        orphan = in_training(slow, MIDDLE)
        linger(slow)
        slow.head_inside(head).kill()
        head.wait(30)
    with slow.running(TRAIN) as head:
        wait_for(lambda: f"cancelling its HTCondor jobs {orphan}" in told_by(slow), "it is cancelled", 60)
        hurry(slow)
        assert finished_in(head, 300), told_by(slow)
    same(slow, "Interrupted")


def test_a_stop_of_the_head_reaches_the_training(slow, same):
    with slow.running(TRAIN) as head:
        in_training(slow, MIDDLE)
        slow.head_inside(head).send_signal(signal.SIGTERM)
        assert head.wait(60) == 128 + signal.SIGTERM
    wait_for(lambda: not slow.queue(), "the job is gone", 60)
    ((_, _, how),) = attempts(slow)[MIDDLE]
    assert how == "Interrupted"
    hurry(slow)
    slow.snakemake(TRAIN)
    same(slow, "Interrupted")


def test_bindings_of_another_series_are_named(campaign, pool):
    places = campaign.variables["PYTHONPATH"].replace(BINDINGS, STRANGE)
    done = campaign.copy(pool.folder / "strange", PYTHONPATH=places).snakemake(TRAIN, check=False)
    assert done.returncode == 69
    assert (
        "the Python package htcondor 24.0.24 is not of the series of this pool, HTCondor 23.9.6"
        in done.stdout
    )
    assert "pip install --no-deps 'htcondor==23.*'" in done.stdout


def test_jobs_ask_for_the_gpus_and_the_memory_of_the_configuration(campaign, pool):
    configure(campaign, **{"train.gpus": 2, "resources.train.mem_mb": 1700})
    campaign.snakemake(TRAIN)
    constraint = f'Iwd == "{campaign.folder}"'
    asked = pool.call("condor_history", "-constraint", constraint, "-af", "RequestGPUs", "RequestMemory")
    assert asked.split() == ["2", "1700"]
