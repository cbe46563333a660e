"""Raw files that no reader reads, through the real Snakemake: converted, split, trained on, and killed."""

import json
import shlex
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import converter
from crpipe.core.ranges import Range
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from named import READERS
from runs import Campaign, job_of, kill, wait_for
from same_results import LISTINGS, products

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = "./convert --infile {in} --outfile {out} --calls calls"  # where the command was typed
BAD = "a $file; that isn't good.raw"
NAMES = ("0000000-0000003", "0000004-0000007")
FILES = 4
WORDS = "--cores 2"


def begin(folder, raw, seconds=0):
    """Begin a campaign whose command takes some seconds for each file."""
    campaign = Campaign.begin(folder)
    program = shlex.join([sys.executable, converter.__file__])
    (folder / "convert").write_text(f'#!/bin/sh\nexec {program} --seconds {seconds} "$@"\n')
    (folder / "convert").chmod(0o755)
    campaign.change(
        source={
            "uri": f"{raw}/{{range}}/*.raw",
            "simulator": "",
            "reader": READERS["bundles"],
            "convert": COMMAND,
            "on_bad_file": "quarantine",
            "max_quarantined": 1,
        },
        simulator=None,
        ranges={"last": 7, "size": 4},
        split={"validation_fraction": 0.3},
        train={"passes_per_link": 2},
        resources={"convert": {"cpus": 1, "mem_mb": 1000}},
    )
    return campaign


def calls_of(campaign):
    path = campaign.folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: lines.count(name) for name in lines}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Two ranges of four raw files, one of which cannot be converted."""
    top = tmp_path_factory.mktemp("raw")
    options = AirShowersOptions(showers_per_file=12, files_per_range=FILES, depths=10, energy_max_gev=1e7)
    for text in NAMES:
        name, simulator = Range.parse(text), AirShowers(options)
        for file in simulator.files(name):
            made = top / "made.parquet"
            simulator.write(name, file, 1, made)
            converter.write_raw(top / text / f"{Path(file).stem}.raw", pq.read_table(made))
            table = pq.read_table(made)
    converter.write_raw(top / NAMES[1] / BAD, table, "corrupt")
    return top


@pytest.fixture(scope="module")
def finished(raw, tmp_path_factory):
    campaign = begin(tmp_path_factory.mktemp("convert") / "campaign", raw)
    assert campaign.jobs("all") | {"convert": 2, "stage": 2, "split": 2} == campaign.jobs("all")
    campaign.snakemake("all")
    return campaign


def test_raw_files_that_no_reader_reads_are_trained_on(finished):
    assert "Nothing to be done" in finished.snakemake("all").stdout
    calls = calls_of(finished)
    assert calls.pop(BAD) == 2
    assert sorted(calls.values()) == [1] * 7 + [
        2
    ]  # the last: one that works is tried before a file is set aside
    ledgers = [json.loads((finished.results / "ledgers" / f"{name}.json").read_text()) for name in NAMES]
    assert [(each["balanced"], each["quarantined"]) for each in ledgers] == [(True, 0), (True, 1)]
    (row,) = [row for row in ledgers[1]["files"] if row["state"] == "quarantined"]
    assert row["path"] == BAD
    log = finished.results / "logs" / "convert" / NAMES[1] / f"{BAD}.log"
    assert str(log.relative_to(finished.folder)) in row["reason"]
    assert log.read_text() == f"reading {BAD}\n"
    left = [
        path for path in (finished.results / "staged").rglob("*") if path.is_file() and path.name != "lease"
    ]
    assert [*left, *(finished.results / "converted").glob("*")] == []
    for verb in ("check", "status", "summary", "plan", "report"):
        done = finished.crpipe(verb)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1 file quarantined" in finished.crpipe("status").stdout


def test_another_command_for_finished_data_is_refused(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    campaign.change(source={"convert": f"{COMMAND} --seconds 0"})
    done = campaign.snakemake("all", check=False)
    assert done.returncode == 2
    assert "source.convert: " in done.stdout
    assert "restore the old values" in done.stdout


def test_a_step_that_is_killed_goes_on_with_what_was_whole(finished, raw, tmp_path):
    campaign = begin(tmp_path / "campaign", raw, seconds=2)

    def outputs():
        return {path.name for path in (campaign.results / "staged").glob("*/.converted/*.parquet")}

    whole = set()
    for who in ("job", "head"):
        with campaign.running(WORDS) as head:
            assert wait_for(lambda whole=whole: len(outputs()) > len(whole), head)
            kill(job_of(head, ["convert"]) if who == "job" else head)
            whole = outputs()
            if who == "job":
                head.wait()
        assert head.returncode
    assert 2 <= len(whole) < 2 * FILES
    before = calls_of(campaign)
    campaign.snakemake("all")
    again = {name for name, calls in calls_of(campaign).items() if calls > before.get(name, 0)}
    assert len({f"{name}.parquet" for name in again} & whole) <= 1  # the one that is tried for the bad one
    assert products(campaign, without=LISTINGS) == products(finished, without=LISTINGS)
