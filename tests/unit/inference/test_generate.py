"""Generation: one event per row, in order, in the workload's own format, the same after a crash."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from counting import Counting, Echo, checkpoint_of, state_of
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.errors import CheckpointError, ConfigError, FormatError, PluginError
from crpipe.core.files import sha256
from crpipe.core.text import NullProgress
from crpipe.inference import output_file
from crpipe.inference.predict import TableRequest, generate_files
from crpipe.train.checkpoints import CheckpointStore, load
from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.layout import BUNDLES, PRIMARY, SCHEMA
from fixed_bundles import LAYOUT, SIZE, FixedGan
from named import READERS

ROWS = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(1)
    options = MuonGanOptions(hidden=8)
    keys = {"train.workload": "crpipe.workloads.muons:MuonGan", "source.reader": READERS["bundles"]}
    keys |= BUNDLES.identity()
    keys |= {f"model.{name}": value for name, value in options.model_dump(mode="json").items()}
    state = state_of(keys, MuonGan(options).model().state_dict())
    return CheckpointStore(tmp_path_factory.mktemp("store"), "k").save_checkpoint(state).path


@pytest.fixture
def columns():
    rng = np.random.default_rng(3)
    return {
        "primary_major_id": np.full(ROWS, 7, np.uint64),
        "primary_minor_id": np.arange(ROWS, dtype=np.uint64),
        "energy_gev": np.geomspace(1e3, 1e7, ROWS).astype(np.float32),
        "zenith_rad": rng.uniform(0, 1, ROWS).astype(np.float32),
        "mass_number": np.ones(ROWS, np.float32),
        "depth_m": np.full(ROWS, 1500, np.float32),
    }


@pytest.fixture
def flat(tmp_path, columns):
    path = tmp_path / "primaries.parquet"
    pq.write_table(pa.table({**columns, "multiplicity": np.arange(ROWS)}), path)
    return path


def generate(
    checkpoint,
    table,
    out,
    multiplicity="column",
    cap=1000,
    events=20_000,
    items=4_000_000,
    flat=False,
    progress=None,
    trained=None,
):
    """Generate as the campaign that trained ``trained``; by default that of the checkpoint."""
    keys = load(trained or checkpoint)["keys"]
    tree = {
        "results": str(out.parent / "results"),
        "source": {"reader": keys["source.reader"]},
        "train": {"workload": keys["train.workload"], "threads": 1},
        "evaluate": {"batch_events": events},
        "load": {"max_items": items},
    }
    campaign = Campaign.open(validate(tree), layout="recorded")
    request = TableRequest(campaign=campaign, checkpoint=checkpoint, inputs=[table], out=out, device="cpu")
    return generate_files(request, progress or NullProgress(), multiplicity=multiplicity, cap=cap, flat=flat)


def run(checkpoint, table, out, *args, **options):
    generate(checkpoint, table, out, *args, **options)
    return pq.read_table(out)


def lengths(table):
    return [len(muons) for muons in table["muons"].to_pylist()]


def test_writes_the_input_schema_with_the_primaries_in_order(checkpoint, flat, tmp_path, columns):
    table = run(checkpoint, flat, tmp_path / "out.parquet")
    assert table.schema == SCHEMA
    assert table["primary_minor_id"].to_pylist() == list(range(ROWS))
    expected = np.stack([columns[field.name] for field in PRIMARY], axis=1)
    assert np.array_equal(np.array(table["primary"].to_pylist(), np.float32), expected)
    assert lengths(table) == list(range(ROWS))


def test_what_was_generated_can_be_generated_for_again(checkpoint, flat, tmp_path):
    first = run(checkpoint, flat, tmp_path / "first.parquet")
    again = run(checkpoint, tmp_path / "first.parquet", tmp_path / "again.parquet")
    assert lengths(again) == lengths(first)


def test_multiplicity_is_a_number_or_predicted_and_capped(checkpoint, flat, tmp_path):
    assert lengths(run(checkpoint, flat, tmp_path / "a.parquet", "4")) == [4] * ROWS
    assert max(lengths(run(checkpoint, flat, tmp_path / "b.parquet", cap=9))) == 9
    assert len(set(lengths(run(checkpoint, flat, tmp_path / "c.parquet", "predicted")))) > 1


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_column_of_multiplicities_may_have_any_name(checkpoint, flat, tmp_path, suffix):
    table = pq.read_table(flat).rename_columns({"multiplicity": "n_mu"})
    path = tmp_path / f"named{suffix}"
    (pyarrow.csv.write_csv if suffix == ".csv" else pq.write_table)(table, path)
    assert lengths(run(checkpoint, path, tmp_path / "out.parquet", "n_mu")) == list(range(ROWS))
    made = run(checkpoint, flat, tmp_path / "raw.parquet")
    assert lengths(made) == list(range(ROWS))
    for name in ("n_mu", "²"):
        with pytest.raises(FormatError, match=rf"--multiplicity {name}: .*raw.parquet is no flat table"):
            run(checkpoint, tmp_path / "raw.parquet", tmp_path / "out.parquet", name)


def test_negative_multiplicities_are_refused(checkpoint, flat, tmp_path):
    table = pq.read_table(flat)
    counts = np.arange(ROWS) - 3
    pq.write_table(table.drop(["multiplicity"]).append_column("n_mu", pa.array(counts)), flat)
    with pytest.raises(FormatError, match="row 0: n_mu is -3, expected 0 or more items"):
        run(checkpoint, flat, tmp_path / "out.parquet", "n_mu")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    options = MuonGanOptions(hidden=8)
    keys = {"train.workload": "fixed_bundles:FixedGan", "source.reader": "fixed_bundles:FixedReader"}
    keys |= LAYOUT.identity()
    keys |= {f"model.{name}": value for name, value in options.model_dump(mode="json").items()}
    state = state_of(keys, MuonGan(options).model().state_dict())
    return CheckpointStore(tmp_path_factory.mktemp("fixed"), "k").save_checkpoint(state).path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"multiplicity": "7"}, "multiplicity 7: each event has 450 muons; leave it out, or give 450"),
        ({"multiplicity": "451"}, "multiplicity 451: each event has 450 muons"),
        ({"multiplicity": "0"}, "multiplicity 0: each event has 450 muons"),
        ({"multiplicity": "predicted", "cap": 449}, "cap 449: each event has 450 muons"),
        ({"multiplicity": "predicted", "cap": -1}, r"cap -1: expected a number from 0, below 2\^63"),
        ({"multiplicity": f"{2**63}"}, r"multiplicity 9223372036854775808: expected a number from 0"),
    ],
)
def test_another_size_than_that_of_the_layout_is_refused_before_any_work(fixed, tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):  # the table, which is missing, is not looked for
        run(fixed, tmp_path / "none.parquet", tmp_path / "out.parquet", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["multiplicity", "n_mu"])
def test_sizes_of_a_table_that_the_layout_does_not_allow_are_refused(fixed, flat, tmp_path, name):
    table = pq.read_table(flat).drop(["multiplicity"])
    counts = np.full(ROWS, SIZE)
    how = "column" if name == "multiplicity" else name
    pq.write_table(table.append_column(name, pa.array(counts)), flat)
    assert lengths(run(fixed, flat, tmp_path / "right.parquet", how)) == [SIZE] * ROWS
    counts[3] = 7
    pq.write_table(table.append_column(name, pa.array(counts)), flat)
    with pytest.raises(
        FormatError, match=f"multiplicity {how}: row 3 .*expected 450 muons in each event, found 7"
    ):
        run(fixed, flat, tmp_path / "out.parquet", how)
    assert not (tmp_path / "out.parquet").exists()


def test_a_workload_that_predicts_another_size_is_named(fixed, flat, tmp_path, monkeypatch):
    assert lengths(run(fixed, flat, tmp_path / "right.parquet", "predicted")) == [SIZE] * ROWS
    monkeypatch.setattr(FixedGan, "predicted", 9)
    with pytest.raises(
        PluginError, match=r"FixedGan.multiplicities: expected 450 muons in each event, found 9"
    ):
        run(fixed, flat, tmp_path / "out.parquet", "predicted")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_flat_output_has_a_row_for_each_item(checkpoint, flat, tmp_path, columns, suffix):
    nested = run(checkpoint, flat, tmp_path / "nested.parquet", events=7)
    out = tmp_path / f"flat{suffix}"
    assert generate(checkpoint, flat, out, events=7, flat=True) == ROWS
    table = pyarrow.csv.read_csv(out) if suffix == ".csv" else pq.read_table(out)
    owner = np.repeat(np.arange(ROWS), np.arange(ROWS))
    assert table["source_row"].to_pylist() == owner.tolist()
    assert set(table["source_file"].to_pylist()) == {0}
    assert np.array_equal(np.array(table["energy_gev"], np.float32), columns["energy_gev"][owner])
    items = np.concatenate(
        [np.array(muons, np.float32).reshape(-1, 3) for muons in nested["muons"].to_pylist()]
    )
    for place, name in enumerate(("energy_gev", "x_m", "y_m")):
        assert np.allclose(np.array(table[f"muons_{name}"], np.float32), items[:, place])
    expected = ["source_file", "source_row", *(field.name for field in BUNDLES.events)]
    assert table.column_names[: len(expected)] == expected


def test_a_flat_output_may_be_a_root_file(checkpoint, flat, tmp_path):
    uproot = pytest.importorskip("uproot")
    assert generate(checkpoint, flat, tmp_path / "flat.root", "2", flat=True) == ROWS
    with uproot.open(tmp_path / "flat.root") as file:
        tree = file["predictions"]
        assert tree["source_row"].array(library="np").tolist() == np.repeat(np.arange(ROWS), 2).tolist()
        assert tree["muons_x_m"].num_entries == 2 * ROWS


def test_a_csv_table_gives_the_same(checkpoint, flat, tmp_path):
    pyarrow.csv.write_csv(pq.read_table(flat), tmp_path / "primaries.csv")
    first = run(checkpoint, flat, tmp_path / "first.parquet")
    assert run(checkpoint, tmp_path / "primaries.csv", tmp_path / "second.parquet").equals(first)


def test_no_row_of_a_csv_table_changes_how_the_others_are_read(checkpoint, columns, tmp_path):
    count = 30_000  # more than pyarrow looks at to choose types
    whole = {name: np.repeat(values[:1], count) for name, values in columns.items()}
    whole["primary_major_id"] = np.full(count, 2**63 + 12345, np.uint64)
    whole["primary_minor_id"] = np.arange(count, dtype=np.uint64)
    whole["depth_m"] = np.where(np.arange(count) < count - 1, 1000, 1018.25).astype(np.float32)
    pyarrow.csv.write_csv(pa.table(whole), tmp_path / "primaries.csv")
    table = run(checkpoint, tmp_path / "primaries.csv", tmp_path / "out.parquet", "0")
    assert table["primary_major_id"].to_pylist() == [2**63 + 12345] * count
    assert [row[3] for row in table["primary"].to_pylist()] == whole["depth_m"].tolist()


@pytest.mark.parametrize("value", ["-1", "7.5", "1e25"])
def test_whole_numbers_in_csv_may_have_a_point_but_no_fraction(checkpoint, tmp_path, value):
    path, names = tmp_path / "primaries.csv", "primary_major_id,primary_minor_id,multiplicity,"
    names += ",".join(field.name for field in PRIMARY)
    path.write_text(f"{names}\n1.000000e+00,1e19,3.0,1e5,0,1,1500\n")
    table = run(checkpoint, path, tmp_path / "out.parquet")
    assert (table["primary_minor_id"].to_pylist(), lengths(table)) == ([10**19], [3])
    path.write_text(f"{names}\n1,{value},3,1e5,0,1,1500\n")
    with pytest.raises(FormatError, match="row 0: primary_minor_id is .*, expected a whole number in uint64"):
        run(checkpoint, path, tmp_path / "out.parquet")


def test_an_interrupted_generation_continues_and_ends_the_same(checkpoint, flat, tmp_path, monkeypatch):
    monkeypatch.setattr(output_file, "BLOCKS_PER_PART", 1)
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    run(checkpoint, flat, whole, events=7)

    class Crash(NullProgress):
        def update(self, label, done, total, note=""):
            if done > 20:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(checkpoint, flat, cut, events=7, progress=Crash())
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cut.parquet.parts/*/*")}
    assert len(made) == 3
    assert not cut.exists()
    run(checkpoint, flat, cut, events=7)
    assert sha256(cut) == sha256(whole)
    assert not list(tmp_path.glob("*.parts"))


def test_memory_is_bounded_by_cutting_at_items(tmp_path, columns):
    seen = []
    Echo.seen = staticmethod(lambda events: seen.append(len(events)))
    path = tmp_path / "flat.parquet"
    counts = [4, 4, 4, 50, 1, 0, 0]
    pq.write_table(pa.table({**{name: c[:7] for name, c in columns.items()}, "multiplicity": counts}), path)
    try:
        table = run(checkpoint_of(tmp_path, Echo), path, tmp_path / "out.parquet", items=10)
    finally:
        Counting.seen = Echo.seen = staticmethod(lambda _: None)
    assert seen == [2, 1, 1, 3]
    assert [len(row) for row in table["muons_x_m"].to_pylist()] == counts


def test_a_workload_that_generates_nothing_is_named(flat, tmp_path):
    with pytest.raises(ConfigError, match="counting:Counting generates no events; use `crpipe predict`"):
        run(checkpoint_of(tmp_path), flat, tmp_path / "out.parquet")


def test_bad_input_is_told_with_place_and_reason(checkpoint, flat, tmp_path, columns):
    with pytest.raises(
        FormatError, match=r"--multiplicity lots: .*primaries.parquet is no flat table with such"
    ):
        run(checkpoint, flat, tmp_path / "out.parquet", "lots")
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.table({"energy_gev": [1.0]}), bare)
    with pytest.raises(FormatError, match="no column depth_m, mass_number, zenith_rad; it has energy_gev"):
        run(checkpoint, bare, tmp_path / "out.parquet")
    columns["zenith_rad"][5] = np.nan
    pq.write_table(pa.table(columns), bare)
    with pytest.raises(FormatError, match="row 5: zenith_rad is nan, not within 0 to 3.14"):
        run(checkpoint, bare, tmp_path / "out.parquet", "3")
    columns["zenith_rad"][5] = 0
    pq.write_table(pa.table(columns), bare)
    twice = pa.table({**columns}).append_column("depth_m", pa.array(columns["depth_m"]))
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(FormatError, match=r"twice\.parquet: 2 columns are called depth_m; write it again"):
        run(checkpoint, tmp_path / "twice.parquet", tmp_path / "out.parquet")
    for value in (1e30, 0.5, -1.0, np.nan):
        ids = np.full(ROWS, value)
        pq.write_table(pa.table({**columns, "primary_minor_id": ids}), tmp_path / "ids.parquet")
        with pytest.raises(
            FormatError, match=r"ids\.parquet: row 0: primary_minor_id is .*, expected a whole"
        ):
            run(checkpoint, tmp_path / "ids.parquet", tmp_path / "out.parquet", "3")
    (tmp_path / "latin.csv").write_bytes(b"energy_gev,zenith_rad\xe9\n1,2\n")
    with pytest.raises(FormatError, match=r"latin\.csv: cannot be read as CSV"):
        run(checkpoint, tmp_path / "latin.csv", tmp_path / "out.parquet")
    with pytest.raises(FormatError, match="the table has no column multiplicity"):
        run(checkpoint, bare, tmp_path / "out.parquet")
    ids = {name: pa.array([1, 2], pa.uint64()) for name in ("primary_major_id", "primary_minor_id")}
    ragged = {**ids, "primary": [[1e5, 0.1, 1], [1e5, 0.1, 1, 1500, 0]]}  # as many values as two rows of four
    ragged["muons"] = pa.array([[], []], pa.list_(pa.list_(pa.float32())))
    pq.write_table(pa.table(ragged), bare)
    with pytest.raises(FormatError, match="primary"):
        run(checkpoint, bare, tmp_path / "out.parquet", "3")
    bare.write_text("nothing")
    with pytest.raises(FormatError, match=f"{bare}: "):
        run(checkpoint, bare, tmp_path / "out.parquet")
    with pytest.raises(FormatError, match=r"missing.parquet: missing; name existing files with --in"):
        run(checkpoint, tmp_path / "missing.parquet", tmp_path / "out.parquet")
    for name, said in (("none.pt", r"^none.pt: missing; "), (f"{tmp_path}/flat.pt", "no hash in its name")):
        (tmp_path / "flat.pt").write_bytes(checkpoint.read_bytes())
        with pytest.raises(CheckpointError, match=said):
            run(type(flat)(name), flat, tmp_path / "out.parquet", trained=checkpoint)
    checkpoint_copy = tmp_path / checkpoint.name
    checkpoint_copy.write_bytes(checkpoint.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="damaged"):
        run(checkpoint_copy, flat, tmp_path / "out.parquet", trained=checkpoint)
