"""Events that are named on the command line become a table, and a table that was written is described."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from crpipe.cli.app import app
from crpipe.cli.use import describe_table, write_events
from crpipe.core.errors import ConfigError


def test_events_of_the_command_line_become_a_table_beside_the_result(tmp_path):
    path = write_events(["energy=1e6, angle=0.3", "angle=0.1,energy=2"], tmp_path / "made.parquet")
    assert path == tmp_path / ".made.parquet.events.csv"
    assert path.read_text() == "energy,angle\n1e6,0.3\n2,0.1\n"


@pytest.mark.parametrize("text", ["energy", "energy=high", "=3", "energy=1,,angle=2"])
def test_what_is_no_event_is_refused_with_an_example(tmp_path, text):
    with pytest.raises(ConfigError, match="is not NAME=NUMBER; for example --event"):
        write_events([text], tmp_path / "made.parquet")


def test_a_number_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--event a=1,b=2,a=3: a is there twice"):
        write_events(["a=1,b=2,a=3"], tmp_path / "made.parquet")


@pytest.mark.parametrize("verb", ["predict", "generate"])
def test_a_seed_below_0_is_a_wrong_call(verb):
    made = CliRunner().invoke(app, [verb, "--seed", "-1", "--checkpoint", "x", "--in", "x", "--out", "x"])
    assert made.exit_code == 2
    assert "Invalid value for '--seed'" in made.output


def test_events_with_different_columns_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="give the same columns for every event"):
        write_events(["a=1", "b=1"], tmp_path / "made.parquet")


def test_what_was_written_is_described(tmp_path):
    table = pa.table({"a": [1, 2, 3], "b": [1, 2, 3]})
    pq.write_table(table, tmp_path / "made.parquet")
    assert describe_table(tmp_path / "made.parquet", 3).startswith(
        f"{tmp_path}/made.parquet: 3 events; columns a, b; "
    )
    assert describe_table(tmp_path / "made.parquet", 1).split("; ")[1] == "3 rows"
    (tmp_path / "made.csv").write_text("a,b\n1,2\n")
    assert describe_table(tmp_path / "made.csv", 1) == f"{tmp_path}/made.csv: 1 event; columns a, b; 8 B"
    (tmp_path / "made.root").write_bytes(b"root")
    assert describe_table(tmp_path / "made.root", 1) == f"{tmp_path}/made.root: 1 event; 4 B"
