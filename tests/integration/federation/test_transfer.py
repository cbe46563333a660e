"""Copies from a real origin: byte-identical, or the right error. What servers do wrong: test_faults.py."""

import base64
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from crpipe.core import checksums
from crpipe.core.errors import AccessError, DiskError, LeaseError, TransferError

pytestmark = pytest.mark.federation
FILE = "part-0003.parquet"
HUGE = 200_000_000


def test_a_range_arrives_whole_and_verified(campaign):
    rows = campaign.stage()
    campaign.assert_identical(rows)
    assert campaign.ways(rows) == {"source-checksum": 12}
    assert campaign.stage() == rows


def test_the_director_is_asked_once(campaign, director_proxy, wire):
    wire(director=director_proxy.url)
    campaign.list()
    director_proxy.seen.clear()
    campaign.stage()
    assert director_proxy.count("GET") == 1
    assert "Authorization" not in director_proxy.seen[0][2]


def test_a_large_file_goes_on_where_it_was_cut(campaign, proxy, wire, faults):
    wire(caches=[proxy.url], origin=proxy.url)
    proxy.script("GET", "large.parquet", *(faults.cut(0.5) for _ in range(3)))
    rows = campaign.stage(uri=campaign.source["uri"].replace("part-*", "large"), attempts=2)
    campaign.assert_identical(rows)
    asked = [sent.get("Range", "") for verb, path, sent in proxy.seen if verb == "GET" and "large" in path]
    starts = [int(text.removeprefix("bytes=").partition("-")[0] or 0) for text in asked]
    assert len(starts) == 4
    assert starts == sorted(set(starts))
    assert all(text.endswith("-7999999") for text in asked[1:])


def test_a_range_that_fails_leaves_no_connection_open(campaign, proxy, wire, faults):
    """The fixture collects what was left open, and any warning of that is an error."""
    wire(caches=[proxy.url], origin=proxy.url)
    campaign.list()
    for name in ("part-0000.parquet", "part-0001.parquet"):
        proxy.script("GET", name, always=faults.stall(0.5))
        proxy.script("HEAD", name, always=faults.stall(0.0))
    proxy.script("GET", FILE, always=faults.status(404))
    with pytest.raises(TransferError, match="not there any more"):
        campaign.stage(read_timeout_s=30.0)


def test_checksums_are_asked_of_the_origin_when_the_cache_has_none(campaign, proxy, wire, faults, federation):
    wire(caches=[proxy.url], origin=federation.topology.origin)
    proxy.script("HEAD", ".parquet", always=faults.header("Digest"))
    rows = campaign.stage()
    assert campaign.ways(rows) == {"source-checksum": 12}
    assert proxy.count("HEAD") < 12  # a silent server is not asked for ever


def test_a_checksum_server_in_trouble_is_not_taken_for_one_without_checksums(campaign, proxy, wire, faults):
    wire(caches=[proxy.url], origin=proxy.url)
    proxy.script("HEAD", FILE, *(faults.status(500) for _ in range(2)))
    assert campaign.ways(campaign.stage()) == {"source-checksum": 12}
    assert proxy.count("GET", FILE) == 1  # only the checksum is asked for again


@pytest.mark.parametrize("algorithm", ["adler32", "md5"])
def test_other_checksums_are_understood(campaign, proxy, wire, faults, algorithm):
    wire(caches=[proxy.url], origin=proxy.url)
    found = bytes.fromhex(checksums.of_file(campaign.truth / FILE, algorithm))
    text = found.hex() if algorithm == "adler32" else base64.b64encode(found).decode()
    proxy.script("HEAD", FILE, faults.header("Digest", f"{algorithm}={text}"))
    row = campaign.stage()[3]
    assert (row["algorithm"], row["checksum"], row["verified"]) == (algorithm, found.hex(), "source-checksum")


def test_a_killed_job_goes_on_in_the_middle_of_a_file(campaign, proxy, wire, faults):
    wire(caches=[proxy.url], origin=proxy.url)
    source = {"uri": campaign.source["uri"].replace("part-*", "large"), "read_timeout_s": 60.0}
    campaign.list(**source)
    proxy.script("GET", "large.parquet", faults.stall(0.5))
    job = multiprocessing.get_context("spawn").Process(target=campaign.stage, kwargs=source)
    job.start()
    part = campaign.raw / "large.parquet.part"
    while not part.exists() or part.stat().st_size < 2_000_000:
        assert job.is_alive()
        time.sleep(0.01)
    os.kill(job.pid, signal.SIGKILL)
    job.join()
    proxy.seen.clear()
    campaign.assert_identical(campaign.stage(**source))
    ranges = [sent.get("Range", "") for verb, _, sent in proxy.seen if verb == "GET"]
    assert len(ranges) == 1
    assert int(ranges[0].removeprefix("bytes=").partition("-")[0]) >= 2_000_000


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


def test_a_token_replaced_in_mid_range_is_picked_up(campaign, proxy, wire, faults):
    wire(caches=[proxy.url], origin=proxy.url)
    campaign.list()
    fresh = campaign.federation.token("storage.read:/data/sim")

    async def revoke(answer):
        campaign.token_file.write_text(fresh)
        return await faults.status(403)(answer)

    proxy.script("GET", FILE, revoke)
    campaign.assert_identical(campaign.stage(attempts=1))
    assert any(sent.get("Authorization") == f"Bearer {fresh}" for _, _, sent in proxy.seen)


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


def test_no_token_shows_in_any_output_file_error_or_process_list(campaign, proxy, wire, faults, federation):
    wire(caches=[proxy.url], origin=proxy.url)
    secret = campaign.token_file.read_text()
    proxy.script("GET", FILE, always=faults.status(500))
    with pytest.raises(TransferError) as caught:
        campaign.stage(attempts=2)
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


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(campaign, proxy, wire):
    wire(caches=[proxy.url], origin=proxy.url)
    with pytest.raises(DiskError, match=r"source\.disk_budget_gib"):
        campaign.stage(disk_budget_gib=1e-4)
    assert proxy.count("GET") == 0


def test_two_jobs_for_one_range_never_work_at_once(campaign, proxy, wire, faults, monkeypatch):
    wire(caches=[proxy.url], origin=proxy.url)
    proxy.script("GET", FILE, faults.stall(0.5))
    campaign.list()
    job = multiprocessing.get_context("spawn").Process(target=campaign.stage)
    job.start()
    while proxy.count("GET", FILE) == 0:
        assert job.is_alive()
        time.sleep(0.01)
    with pytest.raises(LeaseError, match=f"process {job.pid}"):
        campaign.stage()
    monkeypatch.setattr("crpipe.core.lease.WAIT_S", 30.0)
    rows = campaign.stage()
    job.join()
    assert job.exitcode == 0
    campaign.assert_identical(rows)
    assert any("12 of 12 files are here already" in line for line in campaign.lines)


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


def test_two_jobs_started_at_once_copy_every_file_once(campaign, proxy, wire):
    wire(caches=[proxy.url], origin=proxy.url)
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
    assert proxy.count("GET") == 12
    campaign.assert_identical(campaign.stage())


def stage_at(start, campaign):
    start.wait()
    campaign.stage()
