"""Generation: one row per primary, in order, in the input schema, the same after a crash."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from crpipe.core.errors import CheckpointError, ConfigError, FormatError
from crpipe.core.files import sha256
from crpipe.core.progress import Silent
from crpipe.train.checkpoints import Store
from crpipe.workloads.muons import MuonGan, MuonGanOptions, generate
from crpipe.workloads.muons.generate import generate_file
from crpipe.workloads.muons.layout import PRIMARY
from crpipe.workloads.muons.nested_rows import SCHEMA, nested_table

ROWS = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(1)
    options = MuonGanOptions(hidden=8)
    keys = {"train.workload": "crpipe.workloads.muons:MuonGan"}
    keys |= {f"model.{name}": value for name, value in options.model_dump(mode="json").items()}
    state = {"format": 1, "keys": keys, "model": MuonGan(options).model().state_dict(), "average": {}}
    return Store(tmp_path_factory.mktemp("store"), "k").save_checkpoint(state).path


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


def run(checkpoint, primaries, out, multiplicity="column", cap=1000):
    generate_file(checkpoint, primaries, out, multiplicity=multiplicity, cap=cap, seed=1, progress=Silent())
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


def test_an_interrupted_generation_goes_on_and_ends_the_same(checkpoint, flat, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "EVENTS_AT_ONCE", 7)
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    run(checkpoint, flat, whole)

    class Crash(Silent):
        def advance(self, label, done, total, note=""):
            if done > 20:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_file(checkpoint, flat, cut, multiplicity="column", cap=1000, seed=1, progress=Crash())
    parts = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cut.parquet.parts/*/*")}
    assert len(parts) == 3
    assert not cut.exists()
    run(checkpoint, flat, cut)
    assert sha256(cut) == sha256(whole)
    assert not list(tmp_path.glob("*.parts"))


def test_memory_is_bounded_by_cutting_at_muons(monkeypatch):
    monkeypatch.setattr(generate, "MUONS_AT_ONCE", 10)
    counts = np.array([4, 4, 4, 50, 1, 0, 0])
    assert list(generate._runs(counts)) == [(0, 2), (2, 3), (3, 4), (4, 7)]


def test_bad_input_is_told_with_place_and_reason(checkpoint, flat, tmp_path, columns):
    with pytest.raises(ConfigError, match="--multiplicity lots: expected predicted, column or a number"):
        run(checkpoint, flat, tmp_path / "out.parquet", "lots")
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.table({"energy_gev": [1.0]}), bare)
    with pytest.raises(FormatError, match="no column primary, and no depth_m, mass_number, zenith_rad"):
        run(checkpoint, bare, tmp_path / "out.parquet")
    columns["zenith_rad"][5] = np.nan
    pq.write_table(pa.table(columns), bare)
    with pytest.raises(FormatError, match="row 5: zenith_rad = nan is impossible"):
        run(checkpoint, bare, tmp_path / "out.parquet", "3")
    columns["zenith_rad"][5] = 0
    pq.write_table(pa.table(columns), bare)
    with pytest.raises(FormatError, match="neither a column multiplicity nor muons"):
        run(checkpoint, bare, tmp_path / "out.parquet")
    ragged = {"primary": [[1e5, 0.1, 1], [1e5, 0.1, 1, 1500, 0]]}  # as many values as two rows of four
    pq.write_table(pa.table(ragged), bare)
    with pytest.raises(FormatError, match="column primary, row 0: expected 4 values"):
        run(checkpoint, bare, tmp_path / "out.parquet", "3")
    bare.write_text("nothing")
    for path in (bare, tmp_path / "missing.parquet"):
        with pytest.raises(FormatError, match=f"--primaries {path}: not a Parquet file"):
            run(checkpoint, path, tmp_path / "out.parquet")
    checkpoint_copy = tmp_path / checkpoint.name
    checkpoint_copy.write_bytes(checkpoint.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="damaged"):
        run(checkpoint_copy, flat, tmp_path / "out.parquet")


def test_nested_rows_hold_each_event_its_own_muons():
    columns = {field.name: np.ones(3, field.dtype) for field in PRIMARY}
    columns |= {
        "primary_major_id": np.arange(3, dtype=np.uint64),
        "primary_minor_id": np.arange(3, dtype=np.uint64),
    }
    muons = np.arange(9, dtype=np.float32).reshape(3, 3)
    rows = nested_table(columns, np.array([1, 0, 2]), muons)["muons"].to_pylist()
    assert rows == [[[0, 1, 2]], [], [[3, 4, 5], [6, 7, 8]]]
