"""A campaign's configuration and folder, as `crpipe init` writes them."""

import errno
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import crpipe
from crpipe.campaign.declarations import init_configs
from crpipe.config.loading import flatten, load_config, validate
from crpipe.config.reference import entries
from crpipe.core.errors import ConfigError, DiskError
from crpipe.setup import init
from crpipe.setup.compatibility import planned_workload
from crpipe.setup.first_look import Sizes, choose
from crpipe.setup.init import (
    SHOWN,
    Answers,
    changed_files,
    complete,
    compose,
    extras_of,
    fit_to_files,
    included_reader,
    lacking_tables,
    profiles_here,
    render,
    start_campaign,
    workflow_files,
    workflow_home,
)
from crpipe.workloads.direction.reading.prometheus import geometry_of
from crpipe.workloads.direction.simulator.files import kaggle_folder
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from prometheus_files import write_nested

REPOSITORY = Path(__file__).parents[3]
READER = "crpipe.workloads.muons.reading.parquet:Bundles"


@pytest.fixture
def bundles(tmp_path):
    """Two ranges with two files each, 25 showers at 3 depths in a file, with 0 to 3 muons."""
    for number in range(4):
        folder = tmp_path / "data" / f"{number // 2 * 2:07d}-{number // 2 * 2 + 1:07d}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [(shower, depth) for shower in range(25) for depth in (1500.0, 2000.0, 2500.0)]
        columns = {
            "primary_major_id": [number] * len(rows),
            "primary_minor_id": [shower for shower, _ in rows],
            "primary": [[1e5 + shower, 0.1, 1.0, depth] for shower, depth in rows],
            "muons": [[[100.0, 1.0, 2.0]] * (shower % 4) for shower, _ in rows],
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return tmp_path / "data"


def composed(folder, **answers):
    return compose(complete(Answers(**{"workload": "muons", "uri": "synthetic://", **answers}), folder)[0])


@pytest.mark.parametrize("workload", init_configs())
@pytest.mark.parametrize("uri", ["synthetic://", "pelican://host/data/{range}/*.x"])
def test_each_starter_is_a_configuration_that_its_file_says_whole(tmp_path, workload, uri):
    tree = composed(tmp_path, workload=workload, uri=uri)
    written = yaml.safe_load(render(tree))
    (tmp_path / "crpipe.yaml").write_text(render(tree))
    for name, value in flatten(tree):
        assert dict(flatten(written))[name] == value
    config = load_config([tmp_path / "crpipe.yaml"])
    assert config.results == f"results/{workload}"
    assert config.simulates() == (uri == "synthetic://")


def test_comments_are_those_of_the_keys(tmp_path):
    text = render(composed(tmp_path))
    meanings = {entry.dotted: entry.meaning for entry in entries(validate({}))}
    joined = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    for key in SHOWN:
        assert meanings[key] in joined


def test_answers_win_over_the_starter(tmp_path):
    uri = "pelican://host/{range}/*.x"
    tree = composed(tmp_path, uri=uri, run="first", ranges={"last": 1999})
    assert (tree["run"], tree["results"]) == ("first", "results/first")
    assert tree["ranges"] == {"first": 0, "last": 1999, "size": 1000}
    assert tree["source"]["reader"] == READER


def test_a_relative_path_is_absolute_where_the_campaign_is_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.h5").touch()
    for uri, folder, expected in (
        ("*.h5", tmp_path / "trial", f"{tmp_path}/*.h5"),
        ("*.h5", tmp_path, "*.h5"),
        ("pelican://host/x", tmp_path / "trial", "pelican://host/x"),
    ):
        assert complete(Answers("muons", uri), folder)[0].uri == expected


@pytest.mark.parametrize(
    ("ranges", "skip"),
    [
        ({}, ["0000004-0000007"]),
        ({"first": 0, "last": 11, "size": 4}, ["0000004-0000007"]),
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
        ({"ranges": {"last": 30}, "uri": "pelican://h/{range}/*"}, "write ranges.last: 999"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path, answers, said):
    with pytest.raises(ConfigError) as error:
        composed(tmp_path, **answers)
    assert said in str(error.value)


def test_side_tables_of_reader_and_workload_are_asked_for(tmp_path):
    remote = "pelican://host/batch_{number}.parquet"
    assert lacking_tables(composed(tmp_path, workload="direction", uri=remote)) == ["geometry", "meta"]
    given = {"geometry": "/data/geometry.csv", "meta": "/data/meta.parquet"}
    assert lacking_tables(composed(tmp_path, workload="direction", uri=remote, tables=given)) == []
    assert lacking_tables(composed(tmp_path, workload="direction")) == []
    assert lacking_tables(composed(tmp_path, workload="xec", uri=remote)) == ["sensors"]
    assert lacking_tables(composed(tmp_path, workload="xec")) == []


def test_extras_of_a_reader_and_of_an_evaluation():
    assert extras_of("crpipe.workloads.xec.reading.root:RootFiles", "crpipe.workloads.xec:Regressor") == {
        "root": "for the reader RootFiles"
    }
    assert extras_of(READER, "crpipe.workloads.muons:MuonVae") == {"evaluate": "for the AUC of classifiers"}


def test_braces_are_quoted_and_quotes_beside_them_come_back(tmp_path):
    assert 'uri: "pelican://host/{range}/*.x"' in render(composed(tmp_path, uri="pelican://host/{range}/*.x"))
    uri = 'pelican://host/the "new" ones/{range}/*.x'
    assert yaml.safe_load(render(composed(tmp_path, uri=uri)))["source"]["uri"] == uri


def test_the_workflow_is_at_the_root_of_a_checkout_and_beside_the_modules_of_a_wheel(tmp_path, monkeypatch):
    assert workflow_home() == REPOSITORY
    package = tmp_path / "site-packages" / "crpipe"
    rules = package / "setup" / "folder" / "workflow" / "rules"
    monkeypatch.setattr(crpipe, "__file__", str(package / "__init__.py"))
    with pytest.raises(ConfigError, match="this installation has no workflow"):
        workflow_home()
    rules.mkdir(parents=True)
    (rules / "common.smk").touch()
    assert workflow_home() == package / "setup" / "folder"


def test_every_file_that_the_workflow_names_is_among_them():
    paths = {str(path) for path in workflow_files(("slurm",))}
    workflow = REPOSITORY / "workflow"
    assert {str(path.relative_to(REPOSITORY)) for path in workflow.rglob("*.smk")} <= paths
    for rules in workflow.rglob("*.smk"):
        for name in re.findall(r'SCRIPTS / "([^"]+)"|report/(\w+\.rst)', rules.read_text()):
            assert any(path.endswith("".join(name)) for path in paths), name
    assert {"workflow/profiles/default/config.yaml", "slurm/config.yaml"} <= paths
    assert {path.partition("/")[0] for path in paths} == {"workflow", "slurm"}
    assert not {path for path in paths if "test-clean-install" in path or "__pycache__" in path}


def test_a_new_folder_gets_all_and_a_second_call_changes_nothing(tmp_path):
    folder = tmp_path / "a b"
    lines = start_campaign(folder, "run: x\n")
    assert {str(path) for path in workflow_files()} <= {
        str(path.relative_to(folder)) for path in folder.rglob("*")
    }
    assert "  cd " in "\n".join(lines)
    assert f"'{folder}'" in "\n".join(lines)
    assert changed_files(folder) == []
    assert start_campaign(folder, "run: x\n")[0] == f"{folder}: nothing to change"


def test_a_file_with_other_content_stops_all_of_it(tmp_path):
    (tmp_path / "crpipe.yaml").write_text("mine")
    with pytest.raises(ConfigError) as error:
        start_campaign(tmp_path, "run: x\n")
    assert f"{tmp_path}/crpipe.yaml: already there, with other content" in str(error.value)
    assert "--force" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["crpipe.yaml"]


def test_force_keeps_the_old_files(tmp_path):
    start_campaign(tmp_path, "run: x\n")
    start_campaign(tmp_path, "run: y\n", force=True)
    start_campaign(tmp_path, "run: z\n", force=True)
    texts = [(tmp_path / f"crpipe.yaml{end}").read_text() for end in ("", ".old", ".old2")]
    assert texts == ["run: z\n", "run: x\n", "run: y\n"]


def test_an_edited_profile_stays_where_the_workflow_is_there(tmp_path):
    start_campaign(tmp_path, "run: x\n")
    assert not (tmp_path / "slurm").exists()
    start_campaign(tmp_path, "run: x\n", profiles=("slurm",))
    assert (tmp_path / "slurm" / "config.yaml").read_bytes() == (
        REPOSITORY / "slurm/config.yaml"
    ).read_bytes()
    (tmp_path / "crpipe.yaml").unlink()
    (tmp_path / "slurm" / "config.yaml").write_text("jobs: 3\n")
    start_campaign(tmp_path, "run: x\n", profiles=("slurm",))
    assert (tmp_path / "slurm" / "config.yaml").read_text() == "jobs: 3\n"
    (tmp_path / "workflow" / "Snakefile").write_text("edited")
    assert changed_files(tmp_path) == [Path("workflow/Snakefile")]
    assert changed_files(REPOSITORY) == []


def test_the_list_of_files_names_only_what_exists_or_may():
    patterns = init._PATTERNS.read_text().splitlines()
    for pattern in patterns:
        assert pattern.startswith("#") or list(REPOSITORY.glob(pattern)), pattern


def test_a_link_to_nowhere_is_in_the_way_and_force_keeps_it(tmp_path):
    (tmp_path / "crpipe.yaml").symlink_to(tmp_path / "mounted later")
    with pytest.raises(ConfigError, match="already there, with other content; nothing was written"):
        start_campaign(tmp_path, "run: x\n")
    start_campaign(tmp_path, "run: x\n", force=True)
    assert (tmp_path / "crpipe.yaml.old").is_symlink()
    assert not (tmp_path / "crpipe.yaml").is_symlink()


def test_a_start_that_failed_in_the_middle_is_finished_by_the_next(tmp_path, monkeypatch):
    """Whichever file it failed at: the folder was taken for one that has the workflow."""
    whole = tmp_path / "whole"
    start_campaign(whole, "run: a\n")
    names = {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    for number in range(len(names)):
        folder, left = tmp_path / str(number), iter(range(number))

        def publish(part, path, left=left):
            if next(left, None) is None:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            part.replace(path)

        with monkeypatch.context() as failing:
            failing.setattr("crpipe.core.files.publish", publish)
            with pytest.raises(DiskError):
                start_campaign(folder, "run: a\n")
        start_campaign(folder, "run: a\n")
        assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == names


def test_profiles_are_those_that_were_named_or_can_be_used_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert profiles_here() == ()
    (tmp_path / "condor_submit").touch(mode=0o755)
    assert profiles_here() == ("htcondor",)
    assert profiles_here(["slurm"]) == ("slurm",)
    with pytest.raises(ConfigError, match="--profile pbs: not known; write slurm or htcondor"):
        profiles_here(["pbs"])


def test_workload_reader_and_sizes_come_from_the_files(bundles, tmp_path):
    """A folder is enough: its pattern, what reads it, and sizes with which a model learns something."""
    answers, lines = complete(Answers("", str(bundles)), tmp_path)
    assert (answers.workload, answers.reader) == ("muons", READER)
    assert answers.uri == f"{bundles}/{{range}}/*.parquet"
    assert lines[0].startswith("found: 2 ranges in")
    tree, reasons, shown = fit_to_files(compose(answers), answers)
    assert "about 300 events in 100 groups" in shown[0]
    assert (tree["split"]["outlier_above"], tree["split"]["validation_fraction"]) == (3, 0.2)
    assert (tree["load"]["batch_size"], tree["train"]["ranges_per_link"]) == (64, 0)
    assert tree["train"]["schedule"]["warmup_steps"] == pytest.approx(240 * 50 / 64 / 10, abs=1)
    written = render(tree, reasons)
    for key, why in reasons.items():
        assert f"chosen for your files: {why}" in written
        assert any(line.split()[0] == f"{key}:" for line in shown[1:])
    assert load_config([*_written(tmp_path, written)]).train.passes_per_link == 50


def test_a_file_of_an_included_reader_is_inspected_without_a_configuration(bundles, tmp_path):
    assert included_reader(next(bundles.rglob("*.parquet"))).name == READER
    (tmp_path / "other.parquet").write_text("x")
    assert included_reader(tmp_path / "other.parquet") is None
    assert included_reader(tmp_path / "none.parquet") is None


def test_answers_win_over_what_the_files_say(bundles, tmp_path):
    answers, _ = complete(Answers("direction", str(bundles)), tmp_path)
    assert answers.reader == ""
    answers, _ = complete(Answers("muons", str(bundles), reader="mine:Reader"), tmp_path)
    assert answers.reader == "mine:Reader"


def test_side_tables_under_their_usual_names_are_found(tmp_path):
    kaggle_folder(NeutrinoTelescopeOptions(events_per_file=5), 1, (1, 2), tmp_path)
    folder = next(path.parent for path in tmp_path.rglob("batch_1.parquet"))
    answers, _ = complete(Answers("", str(folder)), tmp_path)
    assert answers.workload == "direction"
    assert sorted(answers.tables) == ["geometry", "meta"]
    assert lacking_tables(compose(answers)) == []
    with pytest.raises(ConfigError, match=rf"files below it are read: --uri '?{folder}/batch_{{number}}"):
        complete(Answers("", str(folder.parent)), tmp_path)  # whose files are the side tables
    write_gammas(XenonDetectorOptions(events_per_file=2), 1, 1, tmp_path / "gammas.root")
    (tmp_path / "sensors.csv").touch()
    answers, _ = complete(Answers("", f"{tmp_path}/*.root"), tmp_path)
    assert answers.tables == {"sensors": f"{tmp_path}/sensors.csv"}


def test_side_tables_that_are_given_are_read_with_the_files(tmp_path, monkeypatch):
    files = write_nested(tmp_path / "7_photons.parquet", [3, 0])
    geometry_of([files], tmp_path / "places.csv")
    monkeypatch.chdir(tmp_path)
    named = Answers("", files.name, tables={"geometry": "places.csv"})
    answers, _ = complete(named, tmp_path)
    assert (answers.reader.rpartition(":")[2], dict(answers.tables)) == ("PrometheusPhotons", named.tables)
    answers, _ = complete(named, tmp_path / "mine")  # where the campaign's commands run
    assert dict(answers.tables) == {"geometry": f"{tmp_path}/places.csv"}


def test_many_events_keep_the_usual_sizes():
    """The choice is for campaigns that would not learn anything with them; of others it changes nothing."""
    config = load_config([])
    sizes = Sizes(8, 500_000_000, 200_000_000, {10: 999, 60_000: 1}, "muons", fixed=False)
    assert list(choose(config, sizes, 3, threshold=False)) == []


def test_files_that_no_reader_reads_are_refused_with_the_reasons(tmp_path):
    for name, content in (("a.parquet", None), ("b.gz", b"\x1f\x8bx")):
        folder = tmp_path / name
        folder.mkdir()
        if content is None:
            pq.write_table(pa.table({"major": [1], "minor": [2]}), folder / name)
        else:
            (folder / name).write_bytes(content)
    with pytest.raises(ConfigError) as error:
        complete(Answers("", str(tmp_path / "a.parquet")), tmp_path)
    assert "--workload: not given" in str(error.value)
    assert "as muons: no column muons, primary, primary_major_id" in str(error.value)
    assert "as xec" not in str(error.value)  # whose readers read other formats
    with pytest.raises(ConfigError, match="packed with gzip .*; unpack it first: gunzip"):
        complete(Answers("", str(tmp_path / "b.gz")), tmp_path)


def test_one_file_is_named_by_any_name_and_a_flat_folder_is_counted_first(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "run_7.h5").touch()
    answers, lines = complete(Answers("muons", str(tmp_path / "raw")), tmp_path)
    assert answers.uri == f"{tmp_path}/raw/*.h5"
    assert lines == [f"found: 1 file in {tmp_path}/raw (*.h5)"]
    assert any("crpipe count" in line for line in start_campaign(tmp_path / "trial", "run: x", counts=True))


@pytest.mark.slow
def test_batches_of_a_step_are_those_of_the_workload():
    for name, starter in init_configs().items():
        config = validate(compose(Answers(name, "synthetic://", ranges={"first": 0, "last": 7, "size": 8})))
        assert planned_workload(config).per_step == starter.per_step


def _written(folder, text):
    (folder / "crpipe.yaml").write_text(text)
    return [folder / "crpipe.yaml"]
