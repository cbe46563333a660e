import inspect
from pathlib import Path

import pytest

from campaign_files import linked
from crpipe.core.errors import DataError
from crpipe.core.files import read_json
from crpipe.core.paths import BEST, Paths, command_for, wrong_form

PATHS = Paths(Path("here/results"), Path("there/runs"), "night")
OF_DATA = {"manifest", "staged", "raw", "shards", "outliers", "shard_manifest", "outlier_manifest"}
OF_DATA |= {
    "layout",
    "tables",
    "positions",
    "position_names",
    "multiplicity",
    "histogram",
    "split_record",
    "ledger",
    "threshold",
    "campaign",
    "data_journal",
}
METHODS = {
    name: getattr(PATHS, name)
    for name, member in vars(Paths).items()
    if inspect.isfunction(member) and not name.startswith("_") and name != "split_outputs"  # several files
}


def place(name):
    parameters = inspect.signature(METHODS[name]).parameters
    return METHODS[name](*["0000000-0000999"] * len(parameters))


@pytest.mark.parametrize("name", METHODS)
def test_a_file_stands_below_its_root_and_a_run_touches_no_other(name):
    root = Path("here/results") if name in OF_DATA else Path("there/runs/night")
    assert place(name).is_relative_to(root)


def test_no_two_files_share_a_place():
    places = [place(name) for name in METHODS]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        (PATHS.receipt("0000000-0000999.2"), "crpipe train 0000000-0000999.2"),
        (PATHS.best_receipt("0000000-0000999"), "crpipe train 0000000-0000999"),
        (PATHS.receipt("outliers"), "crpipe train outliers"),
        (PATHS.ledger("0000000-0000999"), "crpipe split 0000000-0000999"),
        (PATHS.histogram("0000000-0000999"), "crpipe split 0000000-0000999"),
        (PATHS.shard_manifest("0000000-0000999"), "crpipe split 0000000-0000999"),
        (PATHS.outlier_manifest("0000000-0000999"), "crpipe split 0000000-0000999"),
        (PATHS.outlier_manifest("consolidated"), "crpipe consolidate"),
        (PATHS.evaluation("outliers") / "metrics.json", "crpipe evaluate outliers"),
        (PATHS.campaign(), ""),
        (Path("metrics.json"), ""),
    ],
)
def test_the_command_that_makes_a_file_again_follows_from_its_place(path, command):
    assert command_for(path) == command


@pytest.fixture
def written(tmp_path):
    """Every JSON file of a campaign, by what it is."""
    files = linked(tmp_path)
    paths, name = files.paths, files.name(0)
    link, best = files.campaign.chain.names[:2]
    places = (paths.campaign(), paths.layout(), paths.run_config(), paths.ledger(name), paths.receipt(link))
    histogram = paths.multiplicity(name).with_name(f"{name}.histogram.json")
    return [*places, paths.best_receipt(best), paths.shard_manifest(name), histogram]


def test_what_crpipe_writes_has_the_form_that_it_reads(written):
    assert [wrong_form(path, read_json(path)) for path in written] == [""] * len(written)


def test_a_file_of_another_form_is_named_with_what_is_wrong(written):
    for path in written:
        path.write_text("[1]")
        with pytest.raises(DataError, match=rf"{path}: damaged \(it is no mapping\); delete it"):
            read_json(path)


WRONG = {
    ("ranges", "step"): ("7", "step is '7'"),
    ("ranges", "ranges"): ([1], "ranges is 1"),
    ("ranges", "key"): (None, "key is None"),
    ("ledgers", "files"): ([{"path": "a"}], "events is missing"),
    ("ledgers", "events"): ({"listed": 1}, "outliers is missing"),
    ("ledgers", "quarantined"): (-1, "quarantined is -1"),
    ("ledgers", "threshold"): (10**30, "threshold is 1000000"),
    ("ledgers", "balanced"): ("yes", "balanced is 'yes'"),
    ("ledgers", "staged"): ({"files": 1}, "bytes is missing"),
}


@pytest.mark.parametrize("place", WRONG, ids="-".join)
def test_each_wrong_value_is_found(written, place):
    folder, name = place
    value, said = WRONG[place]
    path = next(path for path in written if path.parent.name == folder and not path.name.endswith(BEST))
    good = read_json(path)
    assert wrong_form(path, good | {name: value}).startswith(said)
    assert wrong_form(path, {key: each for key, each in good.items() if key != name}) == f"{name} is missing"


def test_a_file_that_no_campaign_has_may_hold_anything():
    assert wrong_form(Path("elsewhere/x.json"), [1]) == ""
