import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from crpipe.campaign import claims
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json, write_json
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from named import READERS

NAME = "0000000-0000999"


@pytest.fixture
def configure(tmp_path):
    def make(*overrides):
        places = [f"results={tmp_path}/results", f"runs={tmp_path}/runs"]
        return load_config([], [*places, f"source.reader={READERS['bundles']}", *overrides])

    return make


def record_data_keys(config):
    claims.record_data_keys(Campaign.open(config))


def check_data(config):
    claims.check_data(Campaign.open(config))


def record_train_keys(config):
    claims.record_train_keys(Campaign.open(config))


def check_train(config):
    claims.check_train(Campaign.open(config))


def made(config):
    """Leave what a split and a training leave."""
    write_json(config.paths().ledger(NAME), {})
    write_json(config.paths().receipt(NAME), {})


def copies(config):
    """Leave what a listing and a staging leave."""
    paths = config.paths()
    for path in (paths.manifest(NAME), paths.raw(NAME) / "a.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_nothing_is_refused_before_the_campaign_has_begun(configure):
    check_data(configure())
    check_train(configure())
    assert not configure().paths().campaign().exists()


def test_data_made_under_other_keys_is_refused_with_key_values_and_way_out(configure):
    record_data_keys(configure())
    made(configure())
    for judge in (check_data, record_data_keys):
        with pytest.raises(ConfigError) as caught:
            judge(configure("split.outlier_above=7"))
        assert "split.outlier_above" in str(caught.value)
        assert "50000, config 7" in str(caught.value)
        assert "set `results` to a new directory" in str(caught.value)
        judge(configure("source.concurrency=2", "resources.train.cpus=1"))  # keys of the site


def test_a_changed_run_is_refused_and_a_new_name_is_not(configure):
    record_train_keys(configure())
    made(configure())
    with pytest.raises(ConfigError, match="give the changed campaign a new name with `run`"):
        check_train(configure("train.passes_per_link=2"))
    check_train(configure("train.passes_per_link=2", "run=other"))
    check_train(configure("source.concurrency=2", "train.snapshot_steps=3"))  # keys of the site


def test_a_changed_run_says_which_commands_and_keys_keep_what_is_trained(configure):
    record_train_keys(configure())
    paths = configure().paths()
    for name, age in (("0000000-0000999", 9), ("0001000-0001999", 5), ("0001000-0001999.best", 1)):
        write_json(paths.receipt(name), {"ranges": [name.removesuffix(".best")]})
        os.utime(paths.receipt(name), (time.time() - age,) * 2)
    with pytest.raises(ConfigError) as caught:
        check_train(configure("train.gradient_clip_norm=2"))
    told = str(caught.value)
    assert "crpipe fork --from 0001000-0001999 --run NEW --set KEY=VALUE" in told
    assert f"train.pretrained: {paths.receipt('0001000-0001999')}, ranges.first: 2000" in told
    with pytest.raises(ConfigError, match="and other data: set `results` to a new directory") as caught:
        check_train(configure("split.outlier_above=7"))
    assert "fork" not in str(caught.value)  # which keeps the data


def test_side_tables_that_are_not_staged_again_yet_are_not_compared(configure):
    campaign = Campaign.open(configure())
    claims.record_train_keys(replace(campaign, table_keys={"tables.geometry": "aa"}))
    made(configure())
    claims.check_train(campaign)
    with pytest.raises(ConfigError, match=r"tables\.geometry: .* 'aa', config 'bb'"):
        claims.check_train(replace(campaign, table_keys={"tables.geometry": "bb"}))


def test_a_claim_is_never_overwritten(configure):
    record_data_keys(configure())
    made(configure())
    before = read_json(configure().paths().campaign())
    record_data_keys(configure())
    with pytest.raises(ConfigError):
        record_data_keys(configure("seed=2"))
    assert read_json(configure().paths().campaign()) == before


CLAIMS = """
import os, sys
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.claims import record_data_keys
from crpipe.config.loading import load_config
campaign = Campaign.open(load_config([], sys.argv[1:]))
closed, gate = os.pipe()
jobs = []
for _ in range(6):
    job = os.fork()
    if job == 0:
        os.close(gate)
        os.read(closed, 1)  # returns when the last holder of the gate, the parent, has closed it
        record_data_keys(campaign)
        os._exit(0)
    jobs.append(job)
os.close(gate)
sys.exit(sum(os.waitpid(job, 0)[1] != 0 for job in jobs))
"""


def test_the_first_jobs_of_a_campaign_may_start_together(configure):
    config = configure()
    keys = [f"results={config.results}", f"source.reader={config.source.reader}"]
    words = [sys.executable, "-c", CLAIMS, *keys]
    assert subprocess.run(words, check=False).returncode == 0
    assert configure().paths().campaign().exists()


@pytest.mark.parametrize("more", ["ranges.last=100999", "train.passes=2"])
def test_added_ranges_or_rounds_are_refused_with_the_key_that_accepts_them(configure, more):
    record_train_keys(configure())
    made(configure())
    with pytest.raises(ConfigError) as refused:
        check_train(configure(more))
    lines = str(refused.value).splitlines()
    assert "  train.schedule.horizon_ranges: 100" in lines
    assert "is trained at the final rate (train.schedule.decay_to: 0.05)" in str(refused.value)
    check_train(configure(more, "train.schedule.horizon_ranges=100"))


@pytest.mark.parametrize("more", ["ranges.last=100999", "train.passes=2"])
def test_a_constant_learning_rate_accepts_more_ranges_and_rounds(configure, more):
    record_train_keys(configure("train.schedule.shape=constant"))
    made(configure())
    check_train(configure("train.schedule.shape=constant", more))
    with pytest.raises(ConfigError) as refused:
        check_train(configure("train.schedule.shape=constant", "train.passes_per_link=2"))
    assert "horizon" not in str(refused.value)


def test_a_record_without_products_is_replaced_by_the_corrected_keys(configure):
    record_data_keys(configure("source.uri=/dta/{range}/*.parquet"))
    record_train_keys(configure("source.uri=/dta/{range}/*.parquet"))
    corrected = configure("source.uri=/data/{range}/*.parquet")
    init_from = corrected.paths().init_from()
    write_json(init_from, {})
    with lease(corrected.paths().table_copies(), say=print):  # of a job that did not find a side table
        pass
    check_data(corrected)
    check_train(corrected)
    record_data_keys(corrected)
    record_train_keys(corrected)
    assert read_json(corrected.paths().campaign()) == Campaign.open(corrected).data_keys
    assert read_json(corrected.paths().layout()) == Campaign.open(corrected).layout.describe()
    assert read_json(corrected.paths().run_config()) == Campaign.open(corrected).train_keys
    assert not init_from.exists()


def test_copies_are_kept_where_only_the_reader_changes(configure):
    record_data_keys(configure())
    copies(configure())
    changed = configure(
        f"source.reader={READERS['bundles_ids']}", "split.outlier_above=7", "source.on_bad_file=quarantine"
    )
    record_data_keys(changed)
    assert read_json(changed.paths().campaign())["source.reader"] == READERS["bundles_ids"]
    assert (changed.paths().raw(NAME) / "a.parquet").exists()
    changed.paths().staged(NAME).touch()
    with pytest.raises(ConfigError, match="source.on_bad_file"):
        record_data_keys(configure(f"source.reader={READERS['bundles_ids']}", "split.outlier_above=7"))


@pytest.mark.parametrize("change", ["source.uri=/data/{range}/*.h5", "seed=7", "source.max_files=3"])
def test_what_was_copied_under_other_keys_is_to_be_deleted_first(configure, change):
    record_data_keys(configure())
    copies(configure())
    with pytest.raises(ConfigError) as refused:
        check_data(configure(change))
    results = configure().results
    assert f"\n  rm -r {results}/manifests {results}/staged\nor restore" in str(refused.value)
    if "max_files" in change:
        assert f"source.max_files: {results} 0 (all), config 3" in str(refused.value)
    made(configure())
    with pytest.raises(ConfigError) as refused:
        check_data(configure(change))
    assert "rm -r" not in str(refused.value)


def test_a_job_at_work_keeps_its_record(configure):
    """Neither what it lists nor what it trains may end up under other keys."""
    with subprocess.Popen([sys.executable, "-c", WORKS, configure().results, configure().runs]) as job:
        journals = (configure().paths().data_journal(), configure().paths().train_journal())
        while not all(Journal(path).rows() for path in journals):
            assert job.poll() is None
        record_data_keys(configure())
        record_train_keys(configure())
        with pytest.raises(ConfigError):
            check_data(configure("seed=2"))
        with pytest.raises(ConfigError):
            check_train(configure("seed=2"))
        job.kill()
        job.wait()
    check_data(configure("seed=2"))
    check_train(configure("seed=2"))


WORKS = """
import sys, time
from pathlib import Path
from crpipe.core.journal import Journal
Journal(Path(sys.argv[1]) / "journal.jsonl").add("start", verb="list", range="0000000-0000999")
Journal(Path(sys.argv[2]) / "default" / "journal.jsonl").add("start", verb="train", range="0000000-0000999")
time.sleep(60)
"""


def test_data_of_a_version_that_trained_on_large_held_out_events_are_refused_and_said_so(configure):
    config = configure()
    record_data_keys(config)
    record_train_keys(config)
    made(config)
    for path, check in ((config.paths().campaign(), check_data), (config.paths().run_config(), check_train)):
        write_json(
            path, {name: value for name, value in read_json(path).items() if name != claims.PARTS_FIRST}
        )
        with pytest.raises(
            ConfigError, match="earlier crpipe, which trained on large held-out events"
        ) as error:
            check(config)
        assert "new directory" in str(error.value) or "new name" in str(error.value)
