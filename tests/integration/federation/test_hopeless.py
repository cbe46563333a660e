"""Faults that do not pass: the right error, nothing half-done under a final name, the next run is whole."""

import multiprocessing
import signal
import threading
import time

import pytest

from crpipe.core.errors import AccessError, OutageError, SourceError, TransferError

pytestmark = pytest.mark.federation
FILE = "part-0003.parquet"
HUGE = 200_000_000


@pytest.mark.parametrize(
    ("kind", "setting", "error", "message"),
    [
        ("cut", 0.0, TransferError, r"the connection ended early after 0 of 20003 bytes \(2 attempts\)"),
        ("cut_without_length", 0.0, TransferError, "the connection ended early after 0 of 20003 bytes"),
        ("cut_between_chunks", 0.0, TransferError, "after 0 of 20003 bytes"),
        ("short", 0.0, TransferError, "offers 0 bytes, the manifest says 20003"),
        ("stall", 0.0, TransferError, "no answer in time after 0 of 20003 bytes"),
        ("silence", 60.0, TransferError, "no answer in time after 0 of 20003 bytes"),
        ("status", 403, AccessError, r"the token from source.token_file \(.*\) is refused"),
        ("status", 404, TransferError, r"not there any more \(status 404\)"),
        ("status", 429, OutageError, r"answers 429 \(2 attempts\); what is verified stays"),
        ("status", 500, TransferError, r"answers 500 \(2 attempts\)"),
        ("status", 503, OutageError, r"answers 503 \(2 attempts\); what is verified stays"),
    ],
)
def test_a_fault_that_stays_is_told_and_the_next_run_is_whole(
    campaign, proxy, wire, faults, kind, setting, error, message
):
    wire(caches=[proxy.url], origin=proxy.url)
    proxy.script("GET", FILE, always=getattr(faults, kind)(setting))
    with pytest.raises(error, match=message) as caught:
        campaign.stage(attempts=2, read_timeout_s=0.5)
    assert type(caught.value) is error
    assert FILE in str(caught.value)
    assert not (campaign.raw / FILE).exists()
    proxy.script("GET", FILE)
    campaign.assert_identical(campaign.stage())


@pytest.mark.parametrize(("kind", "setting"), [("status", 500), ("silence", 60.0)])
def test_a_director_that_stays_broken_is_an_outage(campaign, director_proxy, wire, faults, kind, setting):
    wire(director=director_proxy.url)
    campaign.list()
    director_proxy.script("GET", "", always=getattr(faults, kind)(setting))
    with pytest.raises(
        SourceError, match="not finished within source.deadline_minutes .*the director|out of"
    ):
        campaign.stage(attempts=1, read_timeout_s=0.5, deadline_minutes=0.03, on_bad_file="quarantine")
    assert sum("waiting for it until the deadline" in line for line in campaign.lines) == 1


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
    campaign.stage(lease_wait_s=60.0)
