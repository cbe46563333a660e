import os

import pytest

from crpipe.campaign.records import table_keys, table_paths
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, LeaseError, ListingError, PluginError, TransferError
from crpipe.core.files import read_json, sha256
from crpipe.core.lease import lease
from crpipe.source import local, side_tables
from crpipe.source.counting import check_source
from crpipe.source.side_tables import check_table_uris, check_tables, stage_tables
from named import SIMULATOR
from opened import opened
from told import Told


@pytest.fixture
def geometry(tmp_path):
    path = tmp_path / "source" / "geometry.v2.csv"
    path.parent.mkdir()
    path.write_text("id,x,y\n1,2,3\n")
    return path


@pytest.fixture
def truth(tmp_path, geometry):
    path = geometry.with_name("truth.csv.gz")
    path.write_bytes(b"truth" * 100)
    return path


@pytest.fixture
def config(tmp_path, geometry, truth):
    tables = {"geometry": str(geometry), "truth": f"file://{truth}"}
    return configured(tmp_path, tables)


def configured(tmp_path, tables, **source):
    keys = {"uri": "/data/{range}/*.parquet", "tables": tables, "attempts": 1, **source}
    return validate({"results": str(tmp_path / "results"), "source": keys})


def staged(config):
    told = Told()
    stage_tables(opened(config), told)
    return told.lines[-1]


def test_every_table_is_copied_verified_and_hashed(config, geometry, truth):
    assert staged(config) == "tables: 2 files, 2 staged, 0 verified again"
    record = config.paths().tables()
    rows = read_json(record)
    assert {name: (row["path"], row["uri"], row["size"], row["sha256"]) for name, row in rows.items()} == {
        "geometry": ("tables/geometry.csv", str(geometry), 13, sha256(geometry)),
        "truth": ("tables/truth.csv.gz", f"file://{truth}", 500, sha256(truth)),
    }
    assert {row["verified"] for row in rows.values()} == {"copy-compare"}
    assert table_paths(record)["geometry"].read_bytes() == geometry.read_bytes()
    assert table_keys(record) == {"tables.geometry": sha256(geometry), "tables.truth": sha256(truth)}
    assert {path.name for path in (record.parent / "tables").iterdir()} == {
        "geometry.csv",
        "truth.csv.gz",
        "lease",
    }


def test_a_campaign_without_tables_has_an_empty_record(tmp_path):
    config = configured(tmp_path, {})
    staged(config)
    assert read_json(config.paths().tables()) == {}


def test_tables_that_are_still_the_same_are_kept(config):
    staged(config)
    record = config.paths().tables()
    before = {path: path.stat().st_ino for path in [record, *table_paths(record).values()]}
    assert staged(config) == "tables: 2 files, 0 staged, 2 verified again"
    assert {path: path.stat().st_ino for path in before} == before


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_text("id,x,y\n1,2,4\n")]
)
def test_a_copy_that_is_missing_or_damaged_is_made_again(config, geometry, damage):
    staged(config)
    copy = table_paths(config.paths().tables())["geometry"]
    damage(copy)
    assert staged(config) == "tables: 2 files, 1 staged, 1 verified again"
    assert copy.read_bytes() == geometry.read_bytes()


def test_a_table_that_was_only_touched_is_no_other_table(config, geometry):
    staged(config)
    os.utime(geometry, (1, 1))
    check_tables(config.paths().tables(), config.source.tables)
    assert staged(config) == "tables: 2 files, 1 staged, 1 verified again"
    assert staged(config) == "tables: 2 files, 0 staged, 2 verified again"


@pytest.mark.parametrize("content", ["id,x,y\n1,2,4\n", "longer than it was before"])
def test_changed_content_is_refused_and_the_copy_stays(config, geometry, content):
    staged(config)
    record = config.paths().tables()
    before = record.read_bytes(), table_paths(record)["geometry"].read_bytes()
    geometry.write_text(content)
    os.utime(geometry, (1, 1))
    for check in (lambda: check_source(config), lambda: staged(config), lambda: staged(config)):
        with pytest.raises(ConfigError, match=rf"{geometry}: changed since {record} was written; restore"):
            check()
    assert (record.read_bytes(), table_paths(record)["geometry"].read_bytes()) == before


def test_nothing_is_recorded_before_every_table_is_there(tmp_path, geometry):
    config = configured(tmp_path, {"geometry": str(geometry), "truth": str(tmp_path / "absent.csv")})
    with pytest.raises(
        ListingError, match=r"absent\.csv: cannot be looked up \(No such file.*correct source\.tables\.truth"
    ):
        staged(config)
    assert not config.paths().tables().exists()
    (tmp_path / "absent.csv").write_text("here now")
    assert staged(config) == "tables: 2 files, 2 staged, 0 verified again"


def test_a_job_that_was_killed_between_two_copies_goes_on(config, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(side_tables, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        staged(config)
    assert not config.paths().tables().exists()
    monkeypatch.undo()
    assert staged(config) == "tables: 2 files, 2 staged, 0 verified again"


def test_an_unreadable_table_is_an_error_that_names_it(config, monkeypatch):
    def refused(_, entry):
        raise local._failure(entry, PermissionError(13, "Permission denied"))

    monkeypatch.setattr(local, "_read", refused)
    with pytest.raises(
        TransferError, match=r"cannot be read \(Permission denied\); restore it, or correct source\.tables"
    ):
        staged(config)


def test_a_directory_is_no_table(tmp_path):
    with pytest.raises(ListingError, match="is a directory"):
        staged(configured(tmp_path, {"geometry": str(tmp_path)}))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"a b": "/x.csv"}, "'a b': a name has letters"),
        ({"a": "/x_{range}.csv"}, r"source\.tables\.a: .*names one file"),
        ({"a": "/x_*.csv"}, r"source\.tables\.a: .*names one file"),
        ({"a": ""}, r"source\.tables\.a: not set"),
        ({"a": "ftp://b/x"}, r"source\.tables\.a: ftp:// is not known"),
        ({"a": "synthetic://a"}, "write synthetic:// alone"),
    ],
)
def test_an_impossible_table_is_an_error_before_any_job(tables, message):
    with pytest.raises(ConfigError, match=message):
        check_table_uris(tables)


def test_a_simulated_table_needs_a_simulator(tmp_path):
    with pytest.raises(
        ConfigError, match=r"source\.tables\.a: synthetic://: the raw files are not simulated"
    ):
        staged(configured(tmp_path, {"a": "synthetic://"}))


def test_one_job_at_a_time_stages_tables(config):
    with lease(config.paths().results / "tables", wait_s=0, say=str), pytest.raises(LeaseError):
        staged(config)


class TestOfASimulator:
    @pytest.fixture
    def simulated(self, tmp_path):
        def make(tables):
            return configured(tmp_path, tables, uri="synthetic://", simulator="simulators:WithTables")

        return make

    def test_its_tables_are_taken(self, simulated):
        config = simulated({})
        assert staged(config) == "tables: 1 file, 1 staged, 0 verified again"
        row = read_json(config.paths().tables())["geometry"]
        assert (row["uri"], row["path"]) == ("synthetic://geometry", "tables/geometry.csv")
        assert row["verified"] == "generated"
        assert table_paths(config.paths().tables())["geometry"].read_text() == "id,x\n1,2\n"
        assert staged(config) == "tables: 1 file, 0 staged, 1 verified again"

    def test_they_win_over_a_configured_file_and_stand_beside_others(self, simulated, geometry):
        config = simulated({"geometry": str(geometry), "extra": str(geometry)})
        staged(config)
        rows = read_json(config.paths().tables())
        assert rows["geometry"]["uri"] == "synthetic://geometry"
        assert rows["extra"]["uri"] == str(geometry)

    def test_another_content_is_refused(self, simulated, monkeypatch):
        import simulators

        staged(simulated({"geometry": "synthetic://"}))
        monkeypatch.setattr(simulators.WithTables, "text", "id,x\n1,3\n")
        with pytest.raises(ConfigError, match="synthetic://geometry: changed since"):
            staged(simulated({"geometry": "synthetic://"}))

    def test_a_table_that_it_does_not_write_is_named(self, simulated):
        with pytest.raises(
            ConfigError, match=r"source\.tables\.truth: simulators:WithTables writes no table"
        ):
            staged(simulated({"truth": "synthetic://"}))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (None, " gave None; it has to give the paths"),
            ({"geometry": "a text"}, ": geometry: 'a text' is no file that it wrote"),
            (
                ZeroDivisionError("by zero"),
                r" failed: ZeroDivisionError: by zero \(support/simulators.py",
            ),
        ],
    )
    def test_what_it_does_wrong_names_it(self, simulated, monkeypatch, given, message):
        import simulators

        monkeypatch.setattr(simulators.WithTables, "gives", given, raising=False)
        with pytest.raises(PluginError, match=f"simulators:WithTables.tables{message}"):
            staged(simulated({}))


def test_the_simulator_that_ships_has_no_tables(tmp_path):
    config = configured(tmp_path, {}, uri="synthetic://", simulator=SIMULATOR)
    assert staged(config) == "tables: 0 files, 0 staged, 0 verified again"
