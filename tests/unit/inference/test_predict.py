"""Any raw files become a table of predictions; a crash costs one part, and changes no byte."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from counting import NAMED, Counting, Echo, KeyedBundles, Listing, NeedsPlaces, TwoTables, checkpoint_of
from crpipe import __version__
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.errors import CheckpointError, ConfigError, DeviceMemoryError, FormatError, PluginError
from crpipe.core.files import sha256
from crpipe.core.text import NullProgress
from crpipe.inference import output_file
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.inference.predict import TableRequest, predict_files
from crpipe.workloads.muons.layout import nested_table
from crpipe.workloads.muons.reading.parquet import Bundles
from side_tables import with_tables
from toy import make_events

COUNTS = (30, 0, 20)


def run(request, **options):
    return predict_files(request, NullProgress(), **options)


def with_tables_of(request, staged):
    return replace(request, campaign=with_tables(request.campaign, staged))


def campaign_of(folder, kind, reader, **sections):
    """Open the campaign of a checkpoint, with small blocks."""
    tree = {
        "results": str(folder / "results"),
        "source": {"reader": reader},
        "train": {"workload": f"{kind.__module__}:{kind.__name__}", "threads": 1},
        "evaluate": {"batch_events": 8},
        "load": {"max_items": 40},
        **sections,
    }
    return Campaign.open(validate(tree), layout="recorded")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Prepare a prediction for three raw files: job(workload)."""

    def prepare(kind=Counting, out="out.parquet", **keys):
        paths = []
        for number, count in enumerate(COUNTS):
            events = make_events(count, number)
            paths.append(tmp_path / f"raw-{number}.parquet")
            events.columns["zenith_rad"][:] = 1
            items = np.abs(events.items)
            pq.write_table(nested_table(events.columns, events.multiplicity, items), paths[-1])
        path = checkpoint_of(tmp_path / "store", kind, **keys)
        campaign = campaign_of(tmp_path, kind, keys.get("source.reader", ""))
        return TableRequest(
            campaign=campaign, checkpoint=path, inputs=paths, out=tmp_path / out, device="cpu"
        )

    yield prepare
    Counting.seen = staticmethod(lambda _: None)


def test_one_row_for_each_event_in_the_order_of_the_files(job):
    job = job()
    assert run(job) == sum(COUNTS)
    table = pq.read_table(job.out)
    assert table.column_names == ["path", "source_row", "count", "sum_gev"]
    assert table["path"].to_pylist() == [str(job.inputs[0])] * 30 + [str(job.inputs[2])] * 20
    assert table["source_row"].to_pylist() == [*range(30), *range(20)]
    truth = np.concatenate([make_events(count, number).multiplicity for number, count in enumerate(COUNTS)])
    assert table["count"].to_pylist() == truth.tolist()


def test_small_blocks_become_large_row_groups(job, monkeypatch):
    monkeypatch.setattr(output_file, "GROUP_ROWS", 20)
    job = job()
    run(job)  # eight events at once
    found = pq.ParquetFile(job.out).metadata
    rows = [found.row_group(group).num_rows for group in range(found.num_row_groups)]
    assert sum(rows) == sum(COUNTS)
    assert all(20 <= each < 20 + 8 for each in rows[:-1]), rows


def test_row_groups_of_large_rows_hold_fewer_of_them(job, monkeypatch):
    monkeypatch.setattr(output_file, "GROUP_BYTES", 1)
    job = job()
    run(job)
    assert pq.ParquetFile(job.out).metadata.num_row_groups >= sum(COUNTS) / 8


def test_csv_holds_the_same(job):
    run(job())
    table = job(out="out.csv")
    run(table)
    found = pyarrow.csv.read_csv(table.out)
    whole = pq.read_table(table.out.with_suffix(".parquet"))
    assert found.column_names == whole.column_names
    assert found["count"].to_pylist() == whole["count"].to_pylist()


def test_root_holds_the_same_with_its_types_and_its_origin(job):
    uproot = pytest.importorskip("uproot")
    run(job())
    root = job(out="out.root")
    run(root)
    whole = pq.read_table(root.out.with_suffix(".parquet"))
    with uproot.open(root.out) as file:
        tree, (origin,) = file["predictions"], file["metadata"].arrays(library="ak").to_list()
        assert tree.typenames() == {
            "path": "char*",
            "source_row": "uint32_t",
            "count": "uint32_t",
            "sum_gev": "float",
        }
        assert tree.arrays(library="ak").to_list() == whole.to_pylist()
    trained = open_checkpoint(root.checkpoint, allowed_plugins=NAMED)
    assert origin == {
        "crpipe": __version__,
        "command": "predict",
        "workload": "counting:Counting",
        "reader": trained.checkpoint["keys"]["source.reader"],
        "checkpoint": root.checkpoint.name,
        "sha256": trained.sha256,
        "seed": 1,
        "files": 3,
    }
    assert not list(root.out.parent.glob(".*.part"))


@pytest.mark.parametrize("out", ["out.parquet", "out.csv", "out.root"])
def test_a_killed_prediction_continues_and_ends_the_same(job, monkeypatch, out):
    monkeypatch.setattr(output_file, "BLOCKS_PER_PART", 2)
    job = job(out=out)
    whole = replace(job, out=job.out.with_name(f"whole.{out.split('.')[1]}"))
    run(whole)
    seen = []

    def strike(events):
        seen.append(events)
        if len(seen) == 6:
            raise KeyboardInterrupt

    Counting.seen = staticmethod(strike)
    with pytest.raises(KeyboardInterrupt):
        run(job)
    made = list(job.out.parent.glob(f"{out}.parts/*/part-*"))
    assert len(made) == 2
    assert not job.out.exists()
    first = len(seen)
    run(job)
    assert len(seen) < 2 * first + 2  # the first four blocks are not predicted again
    assert sha256(job.out) == sha256(whole.out)
    assert not list(job.out.parent.glob("*.parts"))


def test_a_damaged_part_of_a_killed_prediction_is_made_again(job, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(output_file, "BLOCKS_PER_PART", 2)
    job = job()
    with monkeypatch.context() as patch:
        patch.setattr(output_file, "_join", stop)
        with pytest.raises(KeyboardInterrupt):
            run(job)
    next(job.out.parent.glob("*.parts/*/part-000001.parquet")).write_bytes(b"")
    run(job)
    whole = sha256(job.out)
    run(job)
    assert sha256(job.out) == whole


def test_whole_events_become_lists_which_csv_cannot_hold(job):
    job = job(Echo)
    run(job)
    table = pq.read_table(job.out)
    assert table.column_names[-3:] == ["muons_energy_gev", "muons_x_m", "muons_y_m"]
    lengths = [len(row) for row in table["muons_x_m"].to_pylist()]
    assert lengths[:30] == make_events(30, 0).multiplicity.tolist()
    with pytest.raises(ConfigError, match=r"CSV cannot hold the lists in muons_energy_gev.*--flat$"):
        run(replace(job, out=job.out.with_suffix(".csv")))


@pytest.fixture
def keyed(job):
    """A prediction whose layout has a key; the energies of all raw files differ."""
    return job(**{"source.reader": "counting:KeyedBundles", **KeyedBundles.layout.identity()})


def test_files_with_two_events_of_one_key_are_refused_at_the_end(keyed):
    assert run(keyed) == sum(COUNTS)
    assert pq.read_table(keyed.out).column_names[2:4] == ["energy_gev", "zenith_rad"]
    first, _, last = keyed.inputs
    again = replace(keyed, inputs=(first, last, first), out=keyed.out.with_name("again.parquet"))
    message = (
        r"raw-0.parquet: row 0: the key energy_gev .*, zenith_rad 1.0 is also that of row 0 of .*raw-0.parqu"
        r"et, and .*; leave one of them out of --in, such as .*raw-0.parquet, or give"
    )
    with pytest.raises(FormatError, match=message):
        run(again)
    assert not again.out.exists()


def test_keys_of_parts_of_an_earlier_run_count_too(keyed, monkeypatch):
    monkeypatch.setattr(output_file, "BLOCKS_PER_PART", 1)
    first, _, last = keyed.inputs
    again = replace(keyed, inputs=(first, last, first))
    seen = []
    Counting.seen = staticmethod(seen.append)
    for _ in range(2):
        with pytest.raises(FormatError, match="and a prediction has one row for each key"):
            run(again)
    assert len({str(each.columns["energy_gev"]) for each in seen}) < len(seen) < 2 * 80 / 8
    assert not again.out.exists()


def test_predicted_lists_become_list_columns_which_csv_cannot_hold(job):
    job = job(Listing)
    run(job)
    table = pq.read_table(job.out)
    assert table.schema.field("values").type == pa.list_(pa.float32())
    assert list(map(len, table["values"].to_pylist())) == table["size"].to_pylist()
    with pytest.raises(ConfigError, match="CSV cannot hold the lists in values, places"):
        run(replace(job, out=job.out.with_suffix(".csv")))
    pytest.importorskip("uproot")
    with pytest.raises(ConfigError, match=r"ROOT .* hold values \(list<.*float.*>\), places"):
        run(replace(job, out=job.out.with_suffix(".root")))
    job = replace(job, out=job.out.with_suffix(".root"))
    run(job, columns=("size",))
    assert job.out.exists()


def test_what_cannot_be_read_or_written_is_named(job, monkeypatch, tmp_path):
    job = job()
    with pytest.raises(ConfigError, match=r"out.txt: expected a name that ends in .parquet or .csv"):
        run(replace(job, out=tmp_path / "out.txt"))
    with pytest.raises(FormatError, match=r"nowhere.parquet: missing; name existing files with --in"):
        run(replace(job, inputs=(tmp_path / "nowhere.parquet",)))
    with pytest.raises(FormatError, match=f"{tmp_path}: a folder; name the files in it, as in {tmp_path}/"):
        run(replace(job, inputs=(tmp_path,)))
    with pytest.raises(FormatError, match="/dev/null: a pipe or device, .*; write its content into a file"):
        run(replace(job, inputs=(Path("/dev/null"),)))
    before = job.inputs[0].read_bytes()
    with pytest.raises(ConfigError, match=r"--out .*raw-0.parquet: also named with --in, and would be repl"):
        run(replace(job, out=tmp_path / "." / ".." / tmp_path.name / "raw-0.parquet"))
    assert job.inputs[0].read_bytes() == before
    with pytest.raises(FormatError, match="the input holds no event"):
        run(replace(job, inputs=job.inputs[1:2]))
    bad = tmp_path / "bad.parquet"
    events = make_events(5, 1)
    pq.write_table(nested_table(events.columns, events.multiplicity, events.items * np.nan), bad)
    with pytest.raises(FormatError, match=r"bad.parquet: row 0: muons\[0\]: energy_gev is nan, not within"):
        run(replace(job, inputs=(bad,)))

    def broken(*_):
        raise ZeroDivisionError("no reason")

    monkeypatch.setattr(Bundles, "rows", broken)
    with pytest.raises(PluginError, match=r"raw-\d.parquet: the reader failed: ZeroDivisionError: no"):
        run(job)


def test_a_checkpoint_of_another_layout_or_table_is_refused(job):
    changed = job(**{"layout.item": "muons"})
    changed = replace(changed, checkpoint=checkpoint_of(changed.out.parent / "b", **{"tables.geometry": "1"}))
    with pytest.raises(CheckpointError, match="another content of the side table geometry"):
        run(replace(changed, campaign=replace(changed.campaign, table_keys={"tables.geometry": "2"})))


def test_a_workload_may_write_its_own_table(job, monkeypatch):
    def table(_, events, __):
        return pa.table({"id": events.columns["primary_minor_id"]})

    monkeypatch.setattr(Counting, "table", table, raising=False)
    job = job()
    run(job)
    assert pq.read_table(job.out).column_names == ["id"]


TWO_TABLES = {"source.reader": "counting:TwoTables"}


def test_the_files_may_bring_side_tables_of_their_own(job, monkeypatch, tmp_path):
    job = job(NeedsPlaces, **TWO_TABLES)
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text("1")
    theirs.write_text("2")
    seen = []
    monkeypatch.setattr(TwoTables, "seen", staticmethod(lambda tables: seen.append(dict(tables))))
    run(with_tables_of(job, {"places": ours, "truth": ours}), tables={"truth": theirs})
    assert seen
    assert all(tables == {"places": ours, "truth": theirs} for tables in seen)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("charges", "--table charges: not a side table of this reader, which reads places, truth; leave it"),
        ("places", "--table places: .*NeedsPlaces was trained with the campaign's places"),
        ("truth", "--table truth=.*nowhere.csv: no such file"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(job, tmp_path, name, message):
    job = job(NeedsPlaces, **TWO_TABLES)
    (tmp_path / "ours.csv").write_text("1")
    tables = dict.fromkeys(("places", "truth"), tmp_path / "ours.csv")
    with pytest.raises(ConfigError, match=message):
        run(with_tables_of(job, tables), tables={name: tmp_path / "nowhere.csv"})
    assert not job.out.exists()


def test_a_table_that_is_nowhere_is_named(job, tmp_path):
    job = job(NeedsPlaces, **TWO_TABLES)
    (tmp_path / "ours.csv").write_text("1")
    with pytest.raises(ConfigError, match=r"source.tables: the table truth is missing"):
        run(with_tables_of(job, {"places": tmp_path / "ours.csv"}))


def test_columns_are_chosen_in_the_order_given(job):
    job = job()
    run(job, columns=("sum_gev", "source_row", "sum_gev"))
    assert pq.read_table(job.out).column_names == ["sum_gev", "source_row"]
    with pytest.raises(ConfigError, match=r"--columns: no column charge; .* has path, source_row, count, su"):
        run(job, columns=("charge",))


def test_every_block_and_every_seed_draw_numbers_of_their_own(job, monkeypatch):
    seeds, predict = [], Counting.predict

    def recording(self, model, events, generator):
        seeds.append(generator.initial_seed())
        return predict(self, model, events, generator)

    monkeypatch.setattr(Counting, "predict", recording)
    job = job()
    for seed in (1, 1, 2):
        run(replace(job, seed=seed))
    blocks = len(seeds) // 3
    assert seeds[:blocks] == seeds[blocks : 2 * blocks]
    assert len({*seeds}) == 2 * blocks > 2


def test_another_use_of_the_same_files_is_not_continued(job, tmp_path):
    job = job()
    predictor = job.open_predictor()
    repeated = campaign_of(tmp_path, Counting, "", model={"repeats": 2})
    uses = [(job, ()), (job, ("count",)), (replace(job, campaign=repeated), ()), (replace(job, seed=2), ())]
    identities = [request.identity(predictor, columns) for request, columns in uses]
    assert len(set(map(str, identities))) == 4


def test_an_option_of_the_use_reaches_the_workload_and_no_other_does(job):
    job = job()
    use = {"repeats": 5, "width": 3}
    workload = open_checkpoint(job.checkpoint, use_options=use, allowed_plugins=NAMED).workload
    assert (workload.options.repeats, workload.options.width) == (5, 1)
    assert open_checkpoint(job.checkpoint, allowed_plugins=NAMED).workload.options.repeats == 1


def test_too_little_memory_of_a_gpu_names_the_keys(job, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Counting, "predict", full)
    message = r"Tried to allocate 2.00 GiB; lower load.max_items or evaluate.batch_events"
    with pytest.raises(DeviceMemoryError, match=message):
        run(job())
