"""What a split promises: nothing lost or doubled, the same bytes every time, errors that name the file."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.ledger import Ledger
from crpipe.campaign.raw_files import Entry, lease_folder, write_manifest
from crpipe.campaign.split_record import NOTES, SPILLS, SplitRecord, left_notes
from crpipe.config.sections import JobResources
from crpipe.core.checksums import of_file
from crpipe.core.errors import (
    ConfigError,
    DataError,
    FormatError,
    LeaseError,
    LedgerError,
    PluginError,
    ShardError,
    SourceError,
)
from crpipe.core.files import read_json, sha256, write_json
from crpipe.core.paths import LARGE_ROLES, ROLES
from crpipe.events.layout import Field
from crpipe.events.shard_manifest import open_manifest
from crpipe.split import spill
from crpipe.split import split as split_module
from damage import cut, flip
from named import READERS
from plain_reader import HITS, make_hits, write_events
from raw_files import (
    NAME,
    campaign,
    choose,
    events_in,
    ledger_of,
    make_events,
    nested,
    product_bytes,
    raw_folder,
    read_through,
    split,
    write_hdf5,
    write_parquet,
    write_staged,
)
from told import Told

MULTIPLICITIES = ([0, 3, 25, 1, 0, 2] * 20, [5] * 40, [0] * 7, [100, 1, 0, 21, 20])


@pytest.fixture
def staged(tmp_path):
    """A staged range of four small files: build(*overrides) -> config."""

    def build(*overrides, folder="a"):
        config = campaign(tmp_path / folder, *overrides)
        raw = raw_folder(config)
        for number, multiplicity in enumerate(MULTIPLICITIES):
            write_parquet(raw / f"{number:04d}.parquet", multiplicity, seed=number)
        write_staged(config)
        return config

    return build


def test_what_is_not_read_again_leaves_the_page_cache(staged, monkeypatch):
    last = {}
    config = staged()
    raw = {path.stat().st_ino for path in raw_folder(config).iterdir()}
    monkeypatch.setattr(
        os, "posix_fadvise", lambda handle, *_: last.update({os.fstat(handle).st_ino: "dropped"})
    )

    def summed(path, algorithm):
        last[path.stat().st_ino] = "read"
        return of_file(path, algorithm)

    monkeypatch.setattr("crpipe.core.checksums.of_file", summed)
    split(config)
    shards = {path.stat().st_ino for path in config.paths().shards(NAME).glob("*.parquet")}
    assert {last[each] for each in raw | shards} == {"dropped"}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_temporary_files_in_spans_give_the_same_bytes(staged, monkeypatch, workers):
    usual = staged()
    split(usual)
    left = []

    def remove(folder, end):
        spill.remove_spans(folder, end)
        left.append(len([*folder.glob("*.items")]))

    monkeypatch.setattr(spill, "_SPAN_BYTES", 2000)
    monkeypatch.setattr(split_module, "remove_spans", remove)
    monkeypatch.setattr(split_module, "_WORKER_RAW", 1)
    config = staged(f"resources.split.cpus={workers}", folder="b")
    split(config)
    assert product_bytes(config) == product_bytes(usual)
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0]


@pytest.mark.parametrize("cache", ["cannot be asked", "refuses"])
def test_a_page_cache_that_takes_no_advice_changes_nothing(staged, monkeypatch, cache):
    usual = staged()
    split(usual)

    def refuse(*_):
        raise OSError(22, "Invalid argument")

    if cache == "refuses":
        monkeypatch.setattr(os, "posix_fadvise", refuse)
    else:  # another system than Linux
        monkeypatch.delattr(os, "posix_fadvise")
    config = staged(folder="b")
    split(config)
    assert product_bytes(config) == product_bytes(usual)


def test_ledger_balances_and_raw_files_are_gone(staged):
    config = staged()
    split(config)
    ledger = ledger_of(config)
    for kind, listed in (("events", sum(map(len, MULTIPLICITIES))), ("items", sum(map(sum, MULTIPLICITIES)))):
        sums = ledger[kind]
        assert sums.pop("listed") == listed == sum(sums.values())
    empty = sum(count == 0 for multiplicity in MULTIPLICITIES for count in multiplicity)
    assert ledger_of(config)["empty"] == empty > 0
    assert sum(ledger["events"][role] for role in LARGE_ROLES) == 22
    assert ledger["events"]["outliers"] > 0 < ledger["events"]["validation_outliers"]
    assert ledger["balanced"] is True
    assert ledger["data"] == Campaign.open(config).data
    assert not config.paths().raw(NAME).exists()
    assert open_manifest(config.paths().shards(NAME), ledger["data"]).as_json()["range"] == NAME
    large = sum(ledger["items"][role] for role in LARGE_ROLES)
    assert read_through(config.paths().outliers(NAME)) == (22, large)


def test_training_events_of_all_files_are_mixed(staged):
    config = staged()
    split(config)
    files = np.concatenate([events.columns["source_file"] for events in events_in(config, "train")])
    assert (np.diff(files.astype(int)) != 0).mean() > 0.3


def test_multiplicity_table_lists_every_event_in_source_order(staged):
    config = staged()
    split(config)
    table = pq.read_table(config.paths().multiplicity(NAME))
    assert np.array_equal(table["multiplicity"].to_numpy(), np.concatenate(MULTIPLICITIES))
    place = table["source_file"].to_numpy() * 10_000 + table["source_row"].to_numpy()
    assert (np.diff(place.astype(int)) > 0).all()
    sums = ledger_of(config)["events"]
    counts = dict(zip(*np.unique(table["destination"].to_pylist(), return_counts=True), strict=True))
    assert counts == {name: sums[name] for name in counts}
    histogram = json.loads((config.paths().multiplicity(NAME).parent / f"{NAME}.histogram.json").read_text())
    assert histogram["edges"][:2] == [0, 1]
    assert histogram["events"][0] == sum(each.count(0) for each in MULTIPLICITIES)
    assert sum(histogram["events"]) == len(table)


COUNTED = "split.histograms={energy_gev: [2.0e+5, 9.0e+5, 7], depth_m: [1000, 1400, 4]}"


def histograms_of(config):
    return open_manifest(config.paths().shards(NAME), None).as_json()["histograms"]


def test_values_of_training_events_are_counted(staged):
    config = staged(COUNTED)
    split(config)
    found = histograms_of(config)
    assert {*found} == {"energy_gev", "depth_m"}
    for name, low, high, bins in (("energy_gev", 2e5, 9e5, 7), ("depth_m", 1000, 1400, 4)):
        values = np.concatenate([events.columns[name] for events in events_in(config, "train")])
        assert found[name] == {
            "low": low,
            "high": high,
            "bins": bins,
            "counts": np.histogram(values.astype(float), np.linspace(low, high, bins + 1))[0].tolist(),
            "under": int((values < low).sum()),
            "over": int((values > high).sum()),
        }
    assert found["energy_gev"]["under"] > 0 < found["energy_gev"]["over"]
    assert "histograms" not in open_manifest(config.paths().outliers(NAME), None).as_json()


def test_a_file_set_aside_and_rejected_events_are_not_counted(staged):
    config = staged(COUNTED, "source.on_bad_file=quarantine", "split.on_bad_event=reject")
    (raw_folder(config) / "worse.parquet").write_bytes(b"PAR1")
    spoil(config)
    split(config)
    trained = ledger_of(config)["events"]["train"]
    for each in histograms_of(config).values():
        assert sum(each["counts"]) + each["under"] + each["over"] == trained


def test_a_histogram_of_no_column_is_refused_before_anything_is_read(staged):
    config = staged("split.histograms={energy: [0, 1, 2]}")
    with pytest.raises(ConfigError, match=r"split.histograms.energy: .* did you mean energy_gev\?"):
        split(config)
    assert not config.paths().shards(NAME).exists()


def test_small_shards_are_cut_by_items(tmp_path):
    config = campaign(tmp_path, "split.shard_items=1000", "split.validation_fraction=0")
    write_parquet(raw_folder(config) / "a.parquet", [10] * 1000)
    write_staged(config)
    split(config)
    entries = open_manifest(config.paths().shards(NAME), None).as_json()["shards"]
    assert len(entries) == 10
    assert all(500 < entry["items"] < 2000 for entry in entries)


def test_hdf5_gives_the_same_shards_as_parquet(staged, tmp_path):
    parquet = staged()
    hdf5 = campaign(tmp_path / "h", f"source.reader={READERS['bundles_hdf5']}")
    for number, multiplicity in enumerate(MULTIPLICITIES):
        path = raw_folder(hdf5) / f"{number:04d}.h5"
        write_hdf5(path, multiplicity, seed=number, zeros_for_none=number % 2 == 0)
    write_staged(hdf5)
    split(parquet)
    split(hdf5)
    shards = [
        {name: data for name, data in product_bytes(config).items() if name.endswith(".parquet")}
        for config in (parquet, hdf5)
    ]
    assert shards[0] == shards[1]


def test_second_run_changes_nothing(staged):
    config = staged()
    split(config)
    before = product_bytes(config)
    split(config)
    assert product_bytes(config) == before
    assert not list(config.paths().results.rglob("*.part"))


def test_outputs_deleted_after_the_raw_files_come_back(staged):
    """A workflow engine deletes the outputs of a job that dies between its last output and its end."""
    config = staged()
    split(config)
    before = product_bytes(config)
    paths = config.paths()
    for path in (paths.shard_manifest(NAME), paths.outlier_manifest(NAME), paths.ledger(NAME)):
        path.unlink()
    split(config)
    assert product_bytes(config) == before


@pytest.mark.parametrize("deleted", ["shards", "outliers"])
def test_a_damaged_shard_is_made_again_once_its_directory_is_deleted(staged, deleted):
    """As the message about it says, and as the workflow then does: stage, and split."""
    config = staged()
    split(config)
    before = product_bytes(config)
    config.paths().staged(NAME).unlink()  # as the workflow does
    folder = getattr(config.paths(), deleted)(NAME)
    shard = min(folder.glob("*.muons.parquet"))
    flip(shard, shard.stat().st_size // 3)
    with pytest.raises(ShardError, match="type what `crpipe check` prints for it"):
        read_through(folder)
    shutil.rmtree(folder)
    with pytest.raises(DataError, match=f"run `crpipe stage {NAME}` first"):
        split(config)
    staged()
    split(config)
    assert product_bytes(config) == before
    assert not config.paths().raw(NAME).exists()


@pytest.mark.parametrize("checksums", ["crc32c", "of an earlier crpipe"])
def test_raw_copies_stay_until_the_shards_were_read_back(staged, monkeypatch, checksums):
    """A disk that loses a bit after the shard was written: the raw copies are the only good ones."""
    config = staged()
    publish_outputs = split_module.publish_outputs

    def damage(record, places):
        publish_outputs(record, places)
        if checksums != "crc32c":
            for place in (places["outliers.json"], places["shards.json"]):
                manifest = read_json(place)
                for file in (file for entry in manifest["shards"] for file in entry["files"].values()):
                    del file["crc32c"]
                write_json(place, manifest)
        shard = min(places["outliers.json"].parent.glob("*.muons.parquet"))
        flip(shard, shard.stat().st_size // 3)

    monkeypatch.setattr(split_module, "publish_outputs", damage)
    with pytest.raises(ShardError, match=r"outliers-00000\.muons\.parquet: damaged"):
        split(config)
    monkeypatch.undo()
    assert len(list(config.paths().raw(NAME).glob("*.parquet"))) == len(MULTIPLICITIES)
    shutil.rmtree(config.paths().outliers(NAME))
    split(config)
    assert read_through(config.paths().outliers(NAME))
    assert not config.paths().raw(NAME).exists()


def test_raw_copies_that_a_live_job_stages_are_not_removed(staged):
    config = staged()
    code = (
        "import sys; from pathlib import Path; from crpipe.core.lease import lease\n"
        "with lease(Path(sys.argv[1]), wait_s=0, say=print): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(lease_folder(config.paths().raw(NAME)))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as stage:
        assert stage.stdout.readline() == "held\n"
        with pytest.raises(LeaseError, match=f"already being worked on by process {stage.pid}"):
            split(config)
        stage.communicate()
    assert list(config.paths().raw(NAME).glob("*.parquet"))
    split(config)
    assert not config.paths().raw(NAME).exists()


def stage_only(config, *names, quarantined=()):
    """Stage some of the range's files again, as a source would that has lost the others."""
    for number, multiplicity in enumerate(MULTIPLICITIES):
        if f"{number:04d}.parquet" in names:
            write_parquet(raw_folder(config) / f"{number:04d}.parquet", multiplicity, seed=number)
    write_staged(config, quarantined=quarantined)


def test_a_finished_range_is_adopted_whatever_is_staged(staged):
    """With quarantine a source that has lost a file would make a poorer range of it."""
    config = staged("source.on_bad_file=quarantine")
    split(config)
    before = product_bytes(config)
    stage_only(config, "0000.parquet", quarantined=["0001.parquet", "0002.parquet", "0003.parquet"])
    split(config)
    assert product_bytes(config) == before
    assert not config.paths().raw(NAME).exists()


def test_a_range_that_a_person_removed_is_made_from_what_is_staged(staged):
    config = staged()
    split(config)
    remedy = SplitRecord.of(config.paths(), NAME).remove()
    subprocess.run(remedy.split(), check=True)
    write_parquet(raw_folder(config) / "only.parquet", [1, 2, 3])
    write_staged(config)
    split(config)
    assert ledger_of(config)["events"]["listed"] == 3


@pytest.mark.parametrize("lost", ["shard", "record"])
def test_a_damaged_range_is_made_again_from_the_same_files_alone(staged, lost):
    """What is left of it is not replaced by what other files would give."""
    config = staged("source.on_bad_file=quarantine")
    split(config)
    before = product_bytes(config)
    paths = config.paths()
    record = paths.shards(NAME) / ".finished"
    if lost == "shard":
        min(paths.shards(NAME).glob("train-*.parquet")).unlink()
    else:
        shutil.rmtree(record)
    damaged = product_bytes(config)
    stage_only(config, "0000.parquet", "0002.parquet", "0003.parquet", quarantined=["0001.parquet"])
    with pytest.raises(
        DataError, match=r"was made from other files than there is now:\n  0001.parquet: gone"
    ):
        split(config)
    assert product_bytes(config) == damaged
    assert paths.raw(NAME).exists()
    stage_only(config, *(f"{number:04d}.parquet" for number in range(4)))
    split(config)
    assert product_bytes(config) == before


def test_a_finished_range_of_other_keys_is_refused_and_kept(staged):
    config = staged("split.quantile=0.9")
    choose(config)
    split(config)
    before = product_bytes(config)
    with pytest.raises(ShardError, match=r"was split with another key \(data"):
        split(config, split={"quantile": 0.8})
    chosen = read_json(config.paths().threshold())
    write_json(config.paths().threshold(), chosen | {"threshold": 2})
    with pytest.raises(ShardError, match=r"was split with another key \(threshold"):
        split(config)
    assert product_bytes(config) == before


def spoil(config):
    """Write a file in which one value is invalid."""
    columns, multiplicity, items = make_events([2, 3, 4], seed=9)
    columns["energy_gev"][1] = np.nan
    pq.write_table(nested(columns, multiplicity, items), raw_folder(config) / "bad.parquet")
    write_staged(config)


def test_legal_values_that_look_wrong_are_said_once(tmp_path):
    config, said = campaign(tmp_path), Told()
    for seed in range(3):
        columns, multiplicity, items = make_events([3] * 40, seed=seed)
        items[:, 1] = -999
        path = raw_folder(config) / f"{seed}.parquet"
        pq.write_table(nested(columns, multiplicity, items), path)
    write_staged(config)
    split_module.split_range(Campaign.open(config), NAME, said)
    warnings = [line for line in said.lines if line.startswith("warning")]
    assert warnings == [line for line in warnings if "muons.x_m has a median of 999 m" in line]
    assert len(warnings) == 1


def test_invalid_event_fails_its_range(staged):
    config = staged()
    spoil(config)
    with pytest.raises(FormatError, match=r"bad\.parquet: row 1: energy_gev is .*on_bad_event"):
        split(config)
    assert not config.paths().shard_manifest(NAME).exists()


def test_damaged_file_fails_or_is_set_aside_whole(staged):
    for policy in ("fail", "quarantine"):
        config = staged(f"source.on_bad_file={policy}", folder=policy)
        bad = raw_folder(config) / "bad.parquet"
        table = nested(*make_events([30, 2] * 3000, seed=9))
        pq.write_table(table, bad, row_group_size=3000, write_page_checksum=True)
        flip(bad, bad.stat().st_size * 3 // 4)
        write_staged(config, quarantined=["gone.parquet"])
        if policy == "fail":
            with pytest.raises(FormatError, match=r"bad\.parquet.*source\.on_bad_file"):
                split(config)
            continue
        split(config)
        ledger = ledger_of(config)
        assert ledger["quarantined"] == 2
        assert ledger["events"]["listed"] == sum(map(len, MULTIPLICITIES))
        row = next(row for row in ledger["files"] if row["path"] == "bad.parquet")
        assert row["state"] == "quarantined"
        assert "bad.parquet" in row["reason"]


def test_too_many_bad_files_fail_the_range(staged):
    config = staged("source.on_bad_file=quarantine", "source.max_quarantined=1")
    (raw_folder(config) / "bad.parquet").write_bytes(b"PAR1")
    write_staged(config, quarantined=["gone.parquet"])
    with pytest.raises(FormatError, match="2 bad files, 1 may be set aside") as refused:
        split(config)
    shards = SplitRecord.of(config.paths(), NAME).shards
    assert left_notes(shards / SPILLS / NOTES) == {}, "the next attempt would tell of a killed process"
    assert refused.tb  # with all that the failed split held


def test_raw_file_that_is_not_what_was_staged(staged):
    config = staged()
    path = raw_folder(config) / "0001.parquet"
    flip(path, 100)
    with pytest.raises(SourceError, match=r"0001\.parquet: changed since it was staged"):
        split(config)
    cut(path)
    with pytest.raises(SourceError, match=r"0001\.parquet: \d+ bytes, \d+ were staged"):
        split(config)
    path.unlink()
    with pytest.raises(SourceError, match=r"0001\.parquet: missing"):
        split(config)


def hits(tmp_path, *overrides, multiplicity=(2, 0, 30, 1), **options):
    """A staged range of one .npz file of another layout."""
    config = campaign(tmp_path, "source.reader=plain_reader:Plain", *overrides)
    config = config.model_copy(update={"reader": options})
    write_events(raw_folder(config) / "a.npz", make_hits(multiplicity))
    write_staged(config)
    return config


def test_messages_use_the_layouts_word(tmp_path):
    config = hits(tmp_path, "source.reader=plain_reader:Broken", wrong="last")
    with pytest.raises(
        LedgerError, match=r"a\.npz: .* 4 events with 33 hits, but 3 events with 32 hits were read"
    ):
        split(config)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_reader_is_named_whoever_calls_it(tmp_path, workers, monkeypatch):
    monkeypatch.setattr("crpipe.split.split._WORKER_RAW", 1)
    config = hits(tmp_path, "source.reader=plain_reader:Broken", wrong="raises")
    write_events(raw_folder(config) / "b.npz", make_hits([1]))
    write_staged(config)
    with pytest.raises(PluginError, match=r"a\.npz: the reader plain_reader:Broken failed.*KeyError"):
        split(config, resources={"split": JobResources(cpus=workers)})


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_side_tables_reach_the_reader_in_every_worker(tmp_path, workers, monkeypatch):
    monkeypatch.setattr("crpipe.split.split._WORKER_RAW", 1)
    config = hits(tmp_path, "source.reader=plain_reader:Geometric", "split.validation_fraction=0")
    write_events(raw_folder(config) / "b.npz", make_hits([1]))
    write_staged(config)
    with pytest.raises(ConfigError, match="source.tables: the table geometry is missing"):
        split(config)
    assert {path.name for path in config.paths().shards(NAME).iterdir()} == {"lease"}
    record = config.paths().tables()
    geometry = record.with_name("geometry")
    for text in ("wide", "1000"):
        geometry.write_text(text)
        row = {"uri": "file:///geometry", "path": geometry.name, "size": 4, "sha256": sha256(geometry)}
        write_json(record, {"geometry": row})
        if text == "wide":
            with pytest.raises(FormatError, match="the table geometry is wrong, give another .* `results`"):
                split(config, resources={"split": JobResources(cpus=workers)})
    split(config, resources={"split": JobResources(cpus=workers)})
    (events,) = events_in(config, "train", HITS)
    assert events.items[:, 0].min() > 900


def test_events_of_a_fixed_size(tmp_path):
    layout = replace(HITS, fixed=30).describe()
    config = hits(tmp_path, "split.outlier_above=30", multiplicity=[30] * 4, layout=layout)
    split(config)
    assert not any(ledger_of(config)["events"][role] for role in LARGE_ROLES)
    assert open_manifest(config.paths().outliers(NAME), None).as_json()["shards"] == []
    short = hits(tmp_path / "short", "split.outlier_above=30", multiplicity=[30, 29], layout=layout)
    with pytest.raises(FormatError, match=r"a\.npz: row 1: expected 30 hits in each event, found 29"):
        split(short)
    low = hits(tmp_path / "low", "split.outlier_above=29", multiplicity=[30], layout=layout)
    with pytest.raises(ConfigError, match=r"split\.outlier_above: 29 is below the 30 hits of every event"):
        split(low)
    assert not low.paths().shards(NAME).exists()


def test_weights_are_summed_by_destination(tmp_path):
    layout = replace(HITS, weight="number").describe()
    config = hits(tmp_path, "split.test_fraction=0.4", multiplicity=[1, 30, 2] * 20, layout=layout)
    split(config)
    paths = config.paths()
    ledger = ledger_of(config)
    table = pq.read_table(paths.multiplicity(NAME))
    assert table.column_names[2:4] == ["run", "number"]
    for role in ROLES:
        mine = table.filter(pc.equal(table["destination"], role))
        assert len(mine)
        assert ledger["weights"][role] == sum(mine["number"].to_pylist())
    assert ledger["weights"]["listed"] == sum(table["number"].to_pylist())
    histogram = json.loads(paths.multiplicity(NAME).with_suffix(".histogram.json").read_text())
    assert sum(histogram["weights"]) == pytest.approx(ledger["weights"]["listed"])
    ledger["weights"]["train"] *= 1 + 1e-6
    assert not Ledger.from_json(ledger).is_balanced()


def test_a_rejected_event_may_have_an_impossible_weight(tmp_path):
    flux = Field("flux", "float32", "", 0, 1e6, "weight")
    layout = replace(HITS, events=(*HITS.events, flux), weight="flux")
    config = hits(tmp_path, "split.on_bad_event=reject", layout=layout.describe())
    events = make_hits([1, 2, 3, 4])
    events.columns["flux"] = np.array([1, np.nan, -2, np.inf], np.float32)
    write_events(raw_folder(config) / "a.npz", events)
    write_staged(config)
    split(config)
    found = ledger_of(config)
    assert found["events"]["rejected"] == 3
    assert (found["weights"]["listed"], found["weights"]["rejected"]) == (-1, -2)
    assert found["balanced"]


def test_the_ledger_says_how_many_files_the_source_has_where_not_all_are_taken(tmp_path):
    config = campaign(tmp_path)
    write_parquet(raw_folder(config) / "a.parquet", [1, 2, 3])
    write_staged(config)
    write_manifest(config.paths().manifest(NAME), [Entry("a.parquet", "a.parquet", 1, None)], 7)
    split(config)
    assert read_json(config.paths().ledger(NAME))["source_files"] == 7


def test_what_was_converted_or_not_read_is_in_the_ledger_once(tmp_path):
    config = campaign(tmp_path)
    for number in range(3):
        table = nested(*make_events([1, 0, 2], seed=number)).append_column("weight", pa.array([1.0] * 3))
        place = table.schema.get_field_index("primary_minor_id")
        ids = table["primary_minor_id"].cast(pa.int64())
        pq.write_table(
            table.set_column(place, "primary_minor_id", ids), raw_folder(config) / f"{number}.parquet"
        )
    write_staged(config)
    split(config)
    assert ledger_of(config)["notes"] == [
        "column primary_minor_id: int64 is read as uint64",
        "columns that are not read: weight",
    ]
    assert ledger_of(config)["events"]["listed"] == 9


def bad_rows(config, *counts, events=100):
    """Write a file of so many events for each count, of which so many have an impossible energy."""
    for number, bad in enumerate(counts):
        columns, multiplicity, items = make_events([1] * events, seed=number)
        columns["energy_gev"][:bad] = np.nan
        path = raw_folder(config) / f"{number}.parquet"
        pq.write_table(nested(columns, multiplicity, items), path)
    write_staged(config)


REJECTING = ("split.on_bad_event=reject", "split.validation_fraction=0")


@pytest.mark.parametrize(
    ("keys", "counts"), [(("split.max_rejected=0.01",), (0, 2)), (("split.max_rejected=0.5",), (100, 0))]
)
def test_as_many_rejected_events_as_are_allowed(tmp_path, keys, counts):
    config = campaign(tmp_path, *REJECTING, *keys)
    bad_rows(config, *counts)
    split(config)
    assert ledger_of(config)["events"]["rejected"] == sum(counts)


@pytest.mark.parametrize(
    ("allowed", "counts"),
    [(0.01, (0, 3)), (0.01, (100, 100)), (0, (1, 0)), (0.5, (100, 1)), (0.99, (100, 100))],
)
def test_more_rejected_events_than_allowed_fail_the_range(tmp_path, allowed, counts):
    config = campaign(tmp_path, *REJECTING, f"split.max_rejected={allowed}")
    bad_rows(config, *counts)
    with pytest.raises(FormatError) as error:
        split(config)
    text = str(error.value)
    found = next(total for total in (counts[0], sum(counts)) if total > allowed * 200)  # no need to read on
    assert f"{NAME}: {found} of 200 events or more are rejected" in text
    first = 0 if counts[0] else 1
    assert f"{first}.parquet: row 0: energy_gev is nan" in text
    assert "raise split.max_rejected" in text
    assert text.count(": row ") == min(3, found)
    assert not config.paths().ledger(NAME).exists()


@pytest.mark.parametrize("aside", [False, True])
def test_a_range_with_no_event_left_is_refused_whatever_is_allowed(tmp_path, aside):
    config = campaign(tmp_path, *REJECTING, "split.max_rejected=1", "source.on_bad_file=quarantine")
    bad_rows(config, 100, 100)
    if aside:
        (raw_folder(config) / "0.parquet").write_bytes(b"PAR1")
        write_staged(config)
    with pytest.raises(
        FormatError, match=r"no event is left, all .* rejected.*ranges\.skip: \[0000000-0000999\]"
    ):
        split(config)
    assert not config.paths().ledger(NAME).exists()


def test_doubtful_groups_are_said_and_recorded(tmp_path):
    config = campaign(tmp_path, "split.validation_fraction=0.3")
    columns, multiplicity, items = make_events([1] * 200)
    columns["primary_minor_id"] = np.arange(200, dtype=np.uint64)  # numbers the rows
    for name in ("energy_gev", "zenith_rad", "mass_number"):
        columns[name] = np.repeat(columns[name][::5], 5)
    pq.write_table(nested(columns, multiplicity, items), raw_folder(config) / "a.parquet")
    write_staged(config)
    split(config)
    said = ledger_of(config)["doubtful_groups"]
    assert "(primary_major_id, primary_minor_id), but rows share energy_gev, zenith_rad" in said
    right = campaign(tmp_path / "right")
    columns["primary_minor_id"] = (np.arange(200) // 5).astype(np.uint64)
    pq.write_table(nested(columns, multiplicity, items), raw_folder(right) / "a.parquet")
    write_staged(right)
    split(right)
    assert "doubtful_groups" not in ledger_of(right)
