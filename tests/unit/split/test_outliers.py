"""Consolidated outliers: every event of every range once, the same bytes after any interruption."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import crpipe
from campaign_files import DEAD_PID
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.claims import record_data_keys
from crpipe.campaign.split_record import SplitRecord
from crpipe.core.errors import ShardError
from crpipe.core.paths import CONSOLIDATED, HASHES, LARGE_ROLES
from crpipe.events.shard_manifest import groups_of, open_manifest
from crpipe.events.shard_reader import Shards
from crpipe.workloads.muons.layout import BUNDLES
from damage import flip
from plain_reader import make_hits, write_events
from raw_files import (
    NAME,
    campaign,
    consolidate,
    raw_folder,
    read_through,
    split,
    write_parquet,
    write_staged,
)

MULTIPLICITIES = ([1, 30, 2, 21, 0], [5, 6, 7], [100_000, 3, 70_000, 400])

SOURCE = ("source_file", "source_row")


@pytest.fixture
def config(tmp_path):
    """A campaign of three split ranges; the second has no outliers."""
    config = campaign(tmp_path, "ranges.last=2999", "outliers.shard_mib=1", "split.validation_fraction=0")
    for number, (each, multiplicity) in enumerate(zip(config.all_ranges(), MULTIPLICITIES, strict=True)):
        write_parquet(raw_folder(config, str(each)) / "a.parquet", multiplicity, seed=number)
        write_staged(config, str(each))
        split(config, str(each))
    return config


def files_of(config):
    folder = config.paths().outliers(CONSOLIDATED)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lease"}


def events_in(folder, role="outliers"):
    return list(groups_of(Shards(folder, role, BUNDLES), BUNDLES))


def held_out_too(root):
    """Three split ranges of several groups, with outliers of every part."""
    config = campaign(root, "ranges.last=2999", "outliers.shard_mib=1", "split.test_fraction=0.3")
    for number, each in enumerate(config.all_ranges()):
        write_parquet(raw_folder(config, str(each)) / "a.parquet", [1, 30_000, 2, 21, 0] * 12, seed=number)
        write_staged(config, str(each))
        split(config, str(each))
    return config


def test_every_outlier_once_and_found_by_the_index(tmp_path):
    config = held_out_too(tmp_path)
    consolidate(config)
    folder, ranges = config.paths().outliers(CONSOLIDATED), [str(each) for each in config.all_ranges()]
    assert read_through(folder) == (72, 3 * 12 * 30_021)
    index = pq.read_table(folder / "index.parquet").to_pydict()
    assert index["destination"] == sorted(index["destination"], key=LARGE_ROLES.index)
    kept = []
    for role in LARGE_ROLES:
        own = [(name, events_in(config.paths().outliers(name), role)) for name in ranges]
        merged = np.concatenate([group.items for group in events_in(folder, role)])
        assert np.array_equal(np.concatenate([g.items for _, groups in own for g in groups]), merged)
        kept += [(name, role) for name, groups in own for group in groups for _ in range(len(group))]
    assert {role for _, role in kept} == {*LARGE_ROLES}
    assert list(zip(index["range"], index["destination"], strict=True)) == kept
    for row, (role, part) in enumerate(zip(index["destination"], index["part"], strict=True)):
        events = pq.read_table(folder / f"{role}-{part:05d}.events.parquet").slice(index["position"][row], 1)
        assert [events[name][0].as_py() for name in SOURCE] == [index[name][row] for name in SOURCE]


def test_again_and_after_any_interruption_the_same_bytes(config):
    consolidate(config)
    expected = files_of(config)
    folder = config.paths().outliers(CONSOLIDATED)
    for name in expected.keys() - {HASHES}:  # whoever lost it may have merged with an earlier crpipe
        (folder / name).unlink()
        (folder / f".{name}.{platform.node()}.{DEAD_PID}.0.part").write_bytes(b"half")
        consolidate(config)
        assert files_of(config) == expected


def test_a_changed_range_is_merged_again(config):
    consolidate(config)
    last = config.all_ranges()[-1]
    subprocess.run(SplitRecord.of(config.paths(), str(last)).remove().split(), check=True)
    write_parquet(raw_folder(config, str(last)) / "b.parquet", [50])
    write_staged(config, str(last))
    split(config, str(last))
    consolidate(config)
    assert read_through(config.paths().outliers(CONSOLIDATED)) == (3, 101)


def test_a_missing_range_is_named(config):
    last = str(config.all_ranges()[-1])
    config.paths().outlier_manifest(last).unlink()
    with pytest.raises(ShardError, match=f"{last}/manifest.json: missing; run `crpipe split {last}` first"):
        consolidate(config)


def test_a_damaged_input_costs_none_of_the_merged_outliers(config):
    """They could not be merged again."""
    consolidate(config)
    made = files_of(config)
    config.paths().outlier_manifest(CONSOLIDATED).unlink()  # as a workflow does before it starts the job
    path = config.paths().outliers(str(config.all_ranges()[0])) / "outliers-00000.muons.parquet"
    flip(path, 20)
    with pytest.raises(ShardError, match=r"outliers-00000\.muons\.parquet: damaged"):
        consolidate(config)
    assert files_of(config) == {name: data for name, data in made.items() if name != "manifest.json"}


def test_a_missing_shard_of_a_range_is_named(config):
    path = config.paths().outliers(str(config.all_ranges()[0])) / "outliers-00000.muons.parquet"
    path.unlink()
    with pytest.raises(ShardError, match=r"outliers-00000\.muons\.parquet: missing, though the manifest"):
        consolidate(config)


def test_no_outliers_at_all(tmp_path):
    config = campaign(tmp_path)
    write_parquet(raw_folder(config) / "a.parquet", [1, 2])
    write_staged(config)
    split(config)
    consolidate(config)
    manifest = json.loads(config.paths().outlier_manifest(CONSOLIDATED).read_text())
    assert manifest["shards"] == []
    index = pq.read_table(config.paths().outliers(CONSOLIDATED) / "index.parquet")
    assert len(index) == 0


ALONE = """
import sys
sys.modules["crpipe.workloads"] = None
from crpipe.campaign.campaign import Campaign, recorded_layout
from crpipe.campaign.recorded import RunRecord
from crpipe.config.loading import load_config
from crpipe.core.files import read_json
from crpipe.core.paths import CONSOLIDATED
from crpipe.core.text import NullProgress
from crpipe.events.shard_manifest import read_layout, verify
from crpipe.loading.loader import Loader
from crpipe.split.outliers import consolidate_outliers
config = load_config((), sys.argv[1:], options=False)
paths = config.paths()
keys, layout = read_json(paths.campaign()), recorded_layout(paths.layout())
record = RunRecord(config.chain(has_outliers=True), keys, keys, ())
campaign = Campaign(config, paths, layout, {}, record)
(name,), target = campaign.ranges, paths.outliers(CONSOLIDATED)
consolidate_outliers(campaign, NullProgress())
print(*verify(target), read_layout(target).item)
for role, folder in (("train", paths.shards(name)), ("outliers", target)):
    loader = Loader(folder, role, batch_events=10, seed=(1,), epochs=1)
    print(sum(len(events) for events, _ in loader.batches()), loader.layout.item)
"""


def test_shards_are_read_and_merged_where_the_readers_package_is_missing(tmp_path):
    config = campaign(tmp_path, "source.reader=plain_reader:Plain", "split.validation_fraction=0")
    write_events(raw_folder(config) / "a.npz", make_hits([3, 50, 1, 0, 60] * 4))
    write_staged(config)
    split(config)
    record_data_keys(Campaign.open(config))
    paths, source = config.paths(), str(Path(crpipe.__file__).parents[1])
    keys = (f"results={paths.results}", f"runs={paths.runs}", "ranges.last=999")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *keys],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    bulk = sum(
        entry["events"]
        for entry in open_manifest(paths.shards(NAME), None).as_json()["shards"]
        if entry["role"] == "train"
    )
    assert done.stdout.split("\n")[:3] == ["8 440 hits", f"{bulk} hits", "8 hits"]


def spoil_layout(config, name, change):
    path = config.paths().outlier_manifest(name)
    manifest = json.loads(path.read_text())
    change(manifest)
    path.unlink()
    path.write_text(json.dumps(manifest))
    return path


def test_a_range_of_another_layout_is_refused(config):
    names = [str(each) for each in config.all_ranges()]
    path = spoil_layout(config, names[1], lambda manifest: manifest["layout"]["items"][0].update(unit="TeV"))
    with pytest.raises(
        ShardError,
        match=rf"{path}: its layout is not that of .*nothing that is whole .*crpipe check {names[1]}",
    ):
        consolidate(config)


@pytest.mark.parametrize("layout", ["bundles", None, {"item": "muons"}])
def test_a_manifest_without_a_layout_is_refused(config, layout):
    name = str(config.all_ranges()[0])
    path = spoil_layout(config, name, lambda manifest: manifest.update(layout=layout))
    with pytest.raises(ShardError, match=rf"{path}: the key layout: not the description.*crpipe check"):
        consolidate(config)
    spoil_layout(config, name, lambda manifest: manifest.pop("layout"))
    with pytest.raises(ShardError, match=rf"{path}: the key layout is missing; type what `crpipe check`"):
        consolidate(config)
