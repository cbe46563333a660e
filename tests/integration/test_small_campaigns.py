"""Campaigns of very little data end without a traceback or a warning, and say in words what is not enough."""

import json
import re

import pyarrow.parquet as pq
import pytest

from crpipe.core.ranges import Range
from crpipe.workloads.muons.layout import SCHEMA
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from runs import Campaign

pytestmark = pytest.mark.timeout(1800)

SHORT = {"passes_per_link": 1, "schedule": {"warmup_steps": 1}}


def begin(tmp_path, *, last=1, train=SHORT, **sections):
    campaign = Campaign.begin(tmp_path / "campaign")
    campaign.change(ranges={"last": last}, train=train, **sections)
    return campaign


def words(text):
    return " ".join(re.sub(r"[│╭╮├┤─╰╯]", " ", text).split())


def says(campaign, *verb):
    """Run a verb that must succeed; return its words."""
    done = campaign.crpipe(*verb)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_quiet(done.stderr, str(verb))
    return words(done.stdout)


def assert_quiet(text, where):
    """No traceback and no warning of Python, or of a library."""
    found = [line for line in text.splitlines() if re.search(r"Traceback|Warning", line)]
    assert found == [], where


def check_whole(campaign):
    """Every verb that looks at the campaign works; no job warned of anything."""
    said = {
        verb: says(campaign, *verb.split()) for verb in ("summary", "status", "plan", "figures --progress")
    }
    says(campaign, "check")
    logs = [path for path in (campaign.folder / "runs").rglob("*.log") if path.is_file()]
    logs += list(campaign.results.rglob("*.log"))
    assert len(logs) > 3
    for path in logs:
        assert_quiet(path.read_text(), path)
    return said


def numbers(campaign, run="tiny"):
    (path,) = (campaign.folder / "runs" / run / "evaluation").glob("*/metrics.json")
    return json.loads(path.read_text())


def finish(campaign):
    done = campaign.snakemake("all")
    assert_quiet(done.stdout, "snakemake")
    return words(done.stdout)


def test_two_held_out_showers_no_outlier_and_a_range_without_any_muon(tmp_path):
    """A file without events and one whose events are empty are a range like any other."""
    raw = tmp_path / "raw"
    options = AirShowersOptions(showers_per_file=12, files_per_range=2, depths=10, energy_max_gev=1e7)
    small = AirShowersOptions(showers_per_file=2, files_per_range=2, depths=10, energy_max_gev=1e7)
    none = AirShowersOptions(
        showers_per_file=3, files_per_range=2, energy_min_gev=100.0, energy_max_gev=101.0, depths=4
    )
    names = {name: Range.parse(name) for name in ("0000000-0000001", "0000002-0000003")}
    for name, files in zip(names, ((options, small), (None, none)), strict=True):
        (raw / name).mkdir(parents=True)
        for file, of in zip(AirShowers(options).files(names[name]), files, strict=True):
            if of is None:
                pq.write_table(SCHEMA.empty_table(), raw / name / file)
            else:
                AirShowers(of).write(names[name], file, 1, raw / name / file)
    campaign = begin(
        tmp_path,
        last=3,
        source={"uri": f"file://{raw}/{{range}}/*.parquet"},
        split={"outlier_above": 10**9, "validation_fraction": 0.0, "validation_files": [1]},
    )
    assert "held out files 1 (split.validation_files) an evaluation needs at least 10" in says(
        campaign, "plan"
    )
    assert "not enough 20 held-out events of 2 groups: AUC of bundles" in finish(campaign)
    assert numbers(campaign)["groups"] == 2
    assert not [name for name in numbers(campaign)["values"] if name.endswith("_error")]
    said = check_whole(campaign)
    assert "2 of 2 ranges trained" in said["status"]
    assert "WARNING the validation events have 2 groups: not enough for AUC of bundles" in said["plan"]
    ledger = json.loads((campaign.results / "ledgers" / "0000002-0000003.json").read_text())
    assert (ledger["events"]["listed"], ledger["items"]["listed"]) == (12, 0)


def test_one_event_that_is_held_out_is_an_error_whose_remedy_works(tmp_path):
    campaign = begin(
        tmp_path,
        simulator={"showers_per_file": 1, "files_per_range": 1, "depths": 1},
        split={"validation_fraction": 0.99},
    )
    campaign.snakemake("outliers_consolidated")
    assert "WARNING no event is left to train on" in says(campaign, "plan")
    done = campaign.snakemake("all", check=False)
    assert done.returncode == 1
    assert "nothing to train on: the chain ends, and no range had a training event" in done.stdout
    assert_quiet(done.stdout, "snakemake")
    # The remedy: hold out less, in a new results directory and run.
    path = campaign.folder / "config" / "tiny.yaml"
    path.write_text(path.read_text().replace("run: tiny", "run: again\nresults: results-again"))
    campaign.change(split={"validation_fraction": 0.0})
    assert "WARNING nothing is held out: an evaluation has no numbers" in says(campaign, "plan")
    assert "not enough: no event is held out, so there are no numbers" in finish(campaign)
    assert numbers(campaign, "again")["values"] == {}
    check_whole(campaign)
    says(campaign, "export", "--checkpoint", "latest", "--out", str(campaign.folder / "exported"))


def test_thirty_held_out_showers_have_an_auc_with_its_error(tmp_path):
    campaign = begin(
        tmp_path,
        simulator={"showers_per_file": 30, "files_per_range": 2},
        evaluate={"events": 1000},
        split={"validation_fraction": 0.0, "validation_files": [1]},
    )
    said = finish(campaign)
    values = numbers(campaign)["values"]
    assert 0 < values["auc_multiplicity"] < 1
    assert values["auc_multiplicity_error"] > 0
    assert "AUC of bundles, true multiplicities needs 20 primaries with bundles of 3 muons or more" in said
    assert "20 groups of validation events or more: enough groups for every number" in says(campaign, "plan")


def test_outliers_alone_are_a_campaign(tmp_path):
    """With every event above the threshold the bulk is empty, and the held-out events are all outliers."""
    campaign = begin(
        tmp_path,
        split={"outlier_above": 1},
        simulator={"energy_min_gev": 1e6, "depth_max_m": 1200.0, "showers_per_file": 4},
    )
    finish(campaign)
    summary = says(campaign, "summary")
    assert "20 validation_outliers" in summary
    assert "not enough 20 held-out events of 2 groups" in summary
    assert "WARNING the validation events have 2 groups" in says(campaign, "plan")
    says(campaign, "check")
