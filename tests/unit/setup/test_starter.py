import pytest
import yaml

from crpipe.config.loading import flatten, load_config, validate
from crpipe.config.reference import entries
from crpipe.core.errors import ConfigError
from crpipe.setup.init import (
    SHOWN,
    Answers,
    complete,
    compose,
    extras_of,
    lacking_tables,
    render,
    starters,
    workflow_home,
)

READER = "crpipe.workloads.muons.reading.parquet:Bundles"


def composed(folder, **answers):
    return compose(complete(Answers(**{"workload": "muons", "uri": "synthetic://", **answers}), folder)[0])


@pytest.mark.parametrize("workload", starters())
@pytest.mark.parametrize("uri", ["synthetic://", "pelican://host/data/{range}/*.x"])
def test_each_starter_is_a_configuration_that_its_file_says_whole(tmp_path, workload, uri):
    tree = composed(tmp_path, workload=workload, uri=uri)
    written = yaml.safe_load(render(tree))
    (tmp_path / "crpipe.yaml").write_text(render(tree))
    for name, value in flatten(tree):
        assert dict(flatten(written))[name] == value
    base = workflow_home() / "config" / "config.yaml"
    config = load_config([base, tmp_path / "crpipe.yaml"])
    assert config.results == f"results/{workload}"
    assert config.simulates() == (uri == "synthetic://")


def test_comments_are_those_of_the_keys(tmp_path):
    text = render(composed(tmp_path))
    meanings = {entry.dotted: entry.meaning for entry in entries(validate({}))}
    joined = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    for key in SHOWN:
        assert meanings[key] in joined


def test_braces_are_quoted(tmp_path):
    assert 'uri: "pelican://host/{range}/*.x"' in render(composed(tmp_path, uri="pelican://host/{range}/*.x"))


def test_answers_win_over_the_starter(tmp_path):
    uri = "pelican://host/{range}/*.x"
    tree = composed(tmp_path, uri=uri, run="first", ranges={"last": 1999})
    assert (tree["run"], tree["results"]) == ("first", "results/first")
    assert tree["ranges"] == {"first": 0, "last": 1999, "step": 1000}
    assert tree["source"]["reader"] == READER


@pytest.mark.parametrize(
    ("ranges", "skip"),
    [
        ({}, ["0000004-0000007"]),
        ({"first": 0, "last": 11, "step": 4}, ["0000004-0000007"]),
        ({"last": 3}, None),
        ({"first": 8}, None),
    ],
)
def test_missing_ranges_are_skipped_where_they_are_in_the_campaign(tmp_path, ranges, skip):
    for name in ("0000000-0000003", "0000008-0000011"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.x").touch()
    tree = composed(tmp_path, uri=f"{tmp_path}/{{range}}/*.x", ranges=ranges)
    assert tree["ranges"].get("skip") == skip


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"workload": ""}, "--workload: not given; write one of direction, muons, xec"),
        ({"workload": "mions"}, "--workload mions: not known"),
        ({"uri": ""}, "--uri: not given"),
        ({"workload": "crpipe.workloads.muons:MuonGan"}, "--reader: this workload names none"),
        ({"workload": "crpipe.workloads.muons:MuonGan", "reader": READER}, "--simulator: this workload"),
        ({"ranges": {"last": 30}, "uri": "pelican://h/{range}/*"}, "not a whole number of steps of 1000"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path, answers, said):
    with pytest.raises(ConfigError) as error:
        composed(tmp_path, **answers)
    assert said in str(error.value)


def test_side_tables_of_the_reader_are_asked_for(tmp_path):
    remote = "pelican://host/batch_{number}.parquet"
    assert lacking_tables(composed(tmp_path, workload="direction", uri=remote)) == ["geometry", "meta"]
    given = {"geometry": "/data/geometry.csv", "meta": "/data/meta.parquet"}
    assert lacking_tables(composed(tmp_path, workload="direction", uri=remote, tables=given)) == []
    assert lacking_tables(composed(tmp_path, workload="direction")) == []


def test_extras_of_a_reader_and_of_an_evaluation():
    assert extras_of("crpipe.workloads.xec.reading.root:RootFiles", "crpipe.workloads.xec:Regressor") == {
        "root": "for the reader RootFiles"
    }
    assert extras_of(READER, "crpipe.workloads.muons:MuonFlow") == {"evaluate": "for the AUC of classifiers"}


def test_quotes_beside_braces_come_back_as_they_are(tmp_path):
    uri = 'pelican://host/the "new" ones/{range}/*.x'
    assert yaml.safe_load(render(composed(tmp_path, uri=uri)))["source"]["uri"] == uri
