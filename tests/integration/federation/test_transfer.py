"""Copies from a real origin: byte-identical, or the right error. What servers do wrong: test_faults.py."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crpipe.core.errors import AccessError, TransferError
from misbehaving import DATA, Rule
from misbehaviours import status

pytestmark = pytest.mark.federation
FILE = "part-0003.parquet"
HUGE = 200_000_000
REPOSITORY = Path(__file__).parents[3]


def test_a_range_arrives_whole_and_verified(campaign):
    rows = campaign.stage()
    campaign.assert_identical(rows)
    assert campaign.ways(rows) == {"source-checksum": 12}
    assert campaign.stage() == rows


def test_the_director_is_asked_once(campaign, misbehaving):
    campaign.list()
    misbehaving.asked.clear()
    campaign.stage()
    (asked,) = [one for one in misbehaving.asked if one.role == "director" and "part-" in one.path]
    assert "authorization" not in asked.headers


def test_a_token_that_expired_is_told_before_anything_is_copied(campaign):
    campaign.list()
    campaign.give_token(lifetime_s=-5)
    with pytest.raises(AccessError, match=r"token: the token expired on .*; renew it|the token expired on"):
        campaign.stage()
    assert not list(campaign.raw.glob("*.parquet*"))


def test_a_token_of_the_wrong_scope_is_told_with_the_scope_needed(campaign):
    campaign.list()
    campaign.give_token("storage.read:/elsewhere")
    with pytest.raises(
        AccessError,
        match=r"the token's scope is storage.read:/elsewhere, needed is storage.read:/data/sim/testing;",
    ):
        campaign.stage()


def test_no_token_is_told_with_the_places_to_put_one(campaign):
    campaign.list()
    with pytest.raises(AccessError, match=r"no token found; put one into source.token_file, BEARER_TOKEN"):
        campaign.stage(token_file="")


def test_a_token_from_the_environment_works(campaign, monkeypatch):
    monkeypatch.setenv("BEARER_TOKEN", campaign.token_file.read_text())
    campaign.assert_identical(campaign.stage(token_file=""))


def test_an_open_namespace_needs_no_token(campaign, federation):
    folder = federation.data / "public" / "open" / "0000000-0000999"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open.parquet").write_bytes(b"for everyone")
    campaign.stage(uri=federation.uri("/public/open/{range}/*.parquet"), token_file="")
    assert (campaign.raw / "open.parquet").read_bytes() == b"for everyone"


def test_no_token_shows_in_any_output_file_error_or_process_list(campaign, misbehaving):
    secret = campaign.token_file.read_text()
    misbehaving.rules.append(Rule(DATA, ("GET",), FILE, status(500)))
    with pytest.raises(TransferError) as caught:
        campaign.stage(attempts=2)
    assert any(secret in one.headers.get("authorization", "") for one in misbehaving.asked)
    shown = [str(caught.value), repr(caught.value.__cause__), *campaign.lines]
    files = [path for path in (campaign.folder / "results").rglob("*") if path.is_file()]
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert files
    for part in (secret, secret.split(".")[2], "authz="):
        assert not any(part in text for text in shown)
        assert not any(part.encode() in path.read_bytes() for path in files)
        assert part not in commands


def test_a_disk_that_fills_up_is_told_and_the_same_command_goes_on(campaign, tmp_path):
    results = tmp_path / "small"
    results.mkdir()
    campaign.list(uri=campaign.source["uri"].replace("part-*", "large"))
    code = (
        "import sys; from crpipe.config.loading import load_config;"
        "from crpipe.campaign.campaign import Campaign;"
        "from crpipe.core.text import NullProgress; from crpipe.source import copies, stage;"
        "copies.RESERVE = -(1 << 40);"
        "from pathlib import Path; config = load_config([Path(sys.argv[1])]);"
        "\ntry: stage.stage_range(Campaign.open(config, \"recorded\"), '0000000-0000999', NullProgress())"
        "\nexcept Exception as error: print(type(error).__name__, error)"
    )
    config = campaign.config(uri=campaign.source["uri"].replace("part-*", "large"), disk_budget_gib=1)
    (tmp_path / "config.yaml").write_text(
        config.model_copy(update={"results": str(results)}).model_dump_json()
    )
    manifest = config.paths().manifest("0000000-0000999")
    script = (
        f"mount -t tmpfs -o size=4m tmpfs {results} && mkdir {results}/manifests && "
        f'cp {manifest} {results}/manifests && exec {sys.executable} -c "$1" {tmp_path}/config.yaml'
    )
    mounted = subprocess.run(
        [
            "unshare",
            *([] if os.geteuid() == 0 else ["--map-root-user"]),
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            code,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no private mounts here: {mounted.stderr}")
    assert mounted.stdout.startswith("DiskError")
    assert "the disk is full: free some space" in mounted.stdout
    campaign.assert_identical(campaign.stage(uri=campaign.source["uri"].replace("part-*", "large")))


def test_an_origin_that_died_is_started_again_while_sums_are_computed(campaign, federation):
    federation.stop("origin", signal.SIGKILL)
    assert federation.warm() > 12
    campaign.assert_identical(campaign.stage())


def test_an_origin_killed_inside_a_file_is_waited_for_and_the_file_goes_on(campaign, federation):
    huge = campaign.truth / "huge.parquet"
    with huge.open("wb") as handle:
        handle.truncate(HUGE)
    source = {"uri": campaign.source["uri"].replace("part-*", "huge"), "attempts": 8}
    part = campaign.raw / "huge.parquet.part"
    try:
        federation.warm()
        campaign.list(**source)
        rows = []
        job = threading.Thread(target=lambda: rows.extend(campaign.stage(**source)))
        job.start()
        while job.is_alive() and not (part.exists() and part.stat().st_size):
            time.sleep(0.001)
        federation.stop("origin", signal.SIGKILL)
        assert job.is_alive()
        assert 0 < part.stat().st_size < HUGE
        federation.up()
        job.join()
        campaign.assert_identical(rows)
    finally:
        federation.up()
        huge.unlink()


def test_two_jobs_started_at_once_copy_every_file_once(campaign, misbehaving):
    campaign.list()
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Event()
    jobs = [spawn.Process(target=stage_at, args=(start, campaign)) for _ in range(2)]
    for job in jobs:
        job.start()
    start.set()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0]
    assert sum(misbehaving.count(role, "GET", ".parquet") for role in DATA) == 12
    campaign.assert_identical(campaign.stage())


def stage_at(start, campaign):
    start.wait()
    campaign.stage()


def test_the_benchmark_of_staging_runs():
    words = [sys.executable, "-m", "benchmarks", "staging", "--smallest"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert "crpipe, checksums" in done.stdout, done.stdout + done.stderr
