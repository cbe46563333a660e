import inspect
from pathlib import Path

import pytest

from crpipe.core.paths import Paths, command_for

PATHS = Paths(Path("here/results"), Path("there/runs"), "night")
OF_DATA = {
    "converted",
    "convert_log",
    "skipped",
    "manifest",
    "staged",
    "raw",
    "shards",
    "outliers",
    "shard_manifest",
    "outlier_manifest",
    "range_pack",
    "layout",
    "data_code",
    "command",
    "tables",
    "table_copies",
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
    parameters = inspect.signature(METHODS[name]).parameters.values()
    return METHODS[name](*["0000000-0000999" for each in parameters if each.kind is not each.KEYWORD_ONLY])


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
        (PATHS.threshold(), "crpipe threshold"),
        (PATHS.evaluation("outliers") / "metrics.json", "crpipe evaluate outliers"),
        (PATHS.evaluation("outliers") / ".finished" / "key.json", "crpipe evaluate outliers"),
        (PATHS.campaign(), ""),
        (Path("metrics.json"), ""),
    ],
)
def test_the_command_that_makes_a_file_again_follows_from_its_place(path, command):
    assert command_for(path) == command
