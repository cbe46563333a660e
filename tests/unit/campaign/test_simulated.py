import pytest

from crpipe.campaign.simulators import open_simulator, simulate_range
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, DiskError, PluginError, SourceError
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress
from crpipe.source.stage import stage_range
from named import SOURCE
from opened import listed, opened, staged


@pytest.fixture
def name():
    return Range.parse("0000000-0000999")


def campaign(folder, simulator="simulators:Tiny", **options):
    source = {**SOURCE, "simulator": simulator}
    return validate({"results": str(folder), "ranges": {"last": 999}, "source": source, "simulator": options})


def test_sizes_are_unknown_until_the_files_are_made(tmp_path, name):
    config = campaign(tmp_path)
    entries = listed(config, name)
    assert [(entry.path, entry.size, entry.mtime) for entry in entries] == [
        ("0.bin", None, None),
        ("999.bin", None, None),
    ]
    rows = staged(config, name).values()
    raw = config.paths().raw(str(name))
    assert [row["size"] for row in rows] == [(raw / row["path"]).stat().st_size for row in rows]
    assert {row["verified"] for row in rows} == {"generated"}
    assert (raw / "0.bin").read_text() == "0000000-0000999 0.bin 1"


def test_two_campaigns_of_the_simulator_that_ships_make_the_same_bytes(tmp_path, name):
    small = {"files_per_range": 3, "showers_per_file": 2, "depths": 2, "energy_max_gev": 1e5}
    one, two = (staged(campaign(tmp_path / key, SOURCE["simulator"], **small), name) for key in "ab")
    assert one == two


def test_files_can_be_written_without_a_campaign(tmp_path, name):
    simulate_range(open_simulator("simulators:Tiny", {}), name, 7, tmp_path / "out", NullProgress())
    assert (tmp_path / "out" / "999.bin").read_text() == "0000000-0000999 999.bin 7"


@pytest.mark.parametrize(
    ("simulator", "message"),
    [
        ("", r"source\.simulator: not set; write module:Name, for example mylab"),
        ("simulators", "expected module:Name"),
        ("simulators:Tinny", "simulators has no class Tinny.*did you mean Tiny"),
        ("no_such_module:Tiny", "cannot be imported"),
        ("simulators:NoLayout", r"simulators:NoLayout\.layout is no crpipe\.events\.layout\.Layout"),
        ("simulators:NoTables", "has no tables"),
    ],
)
def test_a_simulator_that_is_none_is_an_error(tmp_path, name, simulator, message):
    with pytest.raises(ConfigError, match=message):
        listed(campaign(tmp_path, simulator), name)


@pytest.mark.parametrize(
    ("simulator", "error", "message"),
    [
        (
            "simulators:FailsToName",
            PluginError,
            r"range 0000000-0000999: simulators:FailsToName\.files failed: KeyError: 'nothing' \(support/",
        ),
        ("simulators:NamesNoList", PluginError, r"NamesNoList\.files gave 'a text'; it has to give a list"),
        (
            "simulators:FailsToWrite",
            PluginError,
            r"0000000-0000999/\d+\.bin: simulators:FailsToWrite\.write failed: ValueError: no such particle",
        ),
        ("simulators:WritesNothing", PluginError, "wrote no file at the path it was given"),
        ("simulators:FillsTheDisk", DiskError, "the disk is full"),
    ],
)
def test_what_a_simulator_does_wrong_names_file_and_package(tmp_path, name, simulator, error, message):
    config = campaign(tmp_path, simulator)
    with pytest.raises(error, match=message):
        staged(config, name)


def test_a_file_that_the_simulator_no_longer_names_is_told(tmp_path, name, monkeypatch):
    import simulators

    config = campaign(tmp_path)
    listed(config, name)
    monkeypatch.setattr(simulators.Tiny, "files", lambda *_: ["other.bin"])
    with pytest.raises(SourceError, match=r"0\.bin: not a file of the simulated range 0000000-0000999"):
        stage_range(opened(config), str(name), NullProgress())
