"""`crpipe scan`: its file, the names and keys of its runs, what is refused, what becomes of failed runs."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.core.errors import ConfigError, LeaseError
from crpipe.core.files import write_json
from crpipe.core.signals import StopRequest
from crpipe.workflow import run as module
from crpipe.workflow.run import RunRequest, WorkflowEnd
from crpipe.workflow.scan import read_scan, run_scan
from told import Lines

MUONS = "train.workload=crpipe.workloads.muons:MuonGan"


@pytest.fixture
def read(tmp_path):
    def scan(text, *overrides):
        (tmp_path / "scan.yaml").write_text(text)
        return read_scan(tmp_path / "scan.yaml", (), (MUONS, "run=a", *overrides))

    return scan


def test_runs_have_the_names_and_keys_of_the_file_over_those_of_the_configuration(read):
    runs = read(
        "runs:\n  plain:\n  large: &large {model.hidden: 16, train: {ema_decay: 0.9}}\n"
        "  both: {<<: *large, train.passes: 2}\n",
        "train.passes=3",
    )
    assert [run.name for run in runs] == ["a-plain", "a-large", "a-both"]
    assert [run.overrides for run in runs[:2]] == [
        ("run=a-plain",),
        ("model.hidden=16", "train.ema_decay=0.9", "run=a-large"),
    ]
    assert [(run.config.train.passes, run.config.options()["hidden"]) for run in runs[1:]] == [
        (3, 16),
        (2, 16),
    ]
    hidden = runs[0].config.options()["hidden"]
    assert runs[0].keys == {"model.hidden": hidden, "train.ema_decay": 0.998, "train.passes": 3}


def test_names_of_runs_are_those_that_are_written(read):
    names = ["on", "1", "1.0", "010", "2026-11-01"]  # of YAML: true, which equals 1, 1.0, 8, and a date
    assert [run.name for run in read("runs:\n" + "".join(f"  {name}:\n" for name in names))] == [
        f"a-{name}" for name in names
    ]


def test_a_grid_has_a_run_for_each_combination(read):
    grid = "grid: {model.hidden: [8, 16], train: {schedule.shape: [cosine], tf32: [true, false]}}"
    assert [run.name for run in read(grid)] == [
        "a-hidden-8_shape-cosine_tf32-True",
        "a-hidden-8_shape-cosine_tf32-False",
        "a-hidden-16_shape-cosine_tf32-True",
        "a-hidden-16_shape-cosine_tf32-False",
    ]
    maps = "grid: {train.init_map: [{a.: b.}], train.schedule.restarts: [1], load.batch_size: [-1.0e-5, 8]}"
    with pytest.raises(ConfigError, match="init_map--a.-b.-_restarts-1_batch_size--1e-05: load.batch_size"):
        read(maps, "train.pretrained=x")
    (run,) = read(maps.replace("-1.0e-5, ", ""), "train.pretrained=x")
    assert run.config.train.init_map == {"a.": "b."}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rnus: {}", r"'rnus' is not known; known: runs, grid; did you mean runs\?"),
        ("{}", "expected runs or grid, one of them, as in runs: {small"),
        ("{runs: {a: }, grid: {seed: [1]}}", "expected runs or grid, one of them"),
        ("runs: {}", "runs: {}: expected a mapping, as in runs: {small"),
        ("runs: {a: 3}", "a: 3: expected keys with values"),
        ("runs: {a: {}, a: {}}", "a is written twice"),
        ("runs: {a: {seed: 1, model.hidden: 8, model: {hidden: 9}}}", "a: model.hidden is written twice"),
        ("runs: {a b: {model.hidden: 9}}", "a b: run: 'a-a b': legal are letters"),
        ("runs: {a: {model.hiden: 9}}", r"yaml: a: model.hiden: unknown key; did you mean model.hidden\?"),
        ("runs: {a: {train.epochs: 9}}", "yaml: a: train.epochs: unknown key; it is now called train.pa"),
        ("runs: {a: {model.hidden: x}}", "yaml: a: model.hidden: 'x': input should be a valid integer"),
        (
            "runs: {a: {split.quantile: 0.9}}",
            "a: split.quantile changes the data, .* share those in results;",
        ),
        ("runs: {a: {seed: 2}}", "a: seed changes the data"),
        ("runs: {a: {reader.x: 2}}", "a: reader.x changes the data"),
        ("runs: {a: {train.device: cpu}}", "a: train.device is the same for all runs of a scan"),
        ("runs: {a: {run: b}}", "a: run is the same for all runs"),
        (
            "grid: {model.hidden: 3}",
            r"model.hidden: 3: expected a list of values, as in grid: {model.hidden: \[",
        ),
        ("grid: {model.hidden: []}", "expected a list of values"),
        ("grid: {model.hidden: [3, 3]}", "two runs of the grid are hidden-3; write each value once"),
    ],
)
def test_what_is_no_scan_is_refused_in_one_sentence(read, text, error):
    with pytest.raises(ConfigError, match=error) as raised:
        read(text)
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_that_is_not_there_is_refused_with_an_example(tmp_path):
    with pytest.raises(ConfigError, match="none.yaml: no such file; write one that holds runs: {small"):
        read_scan(tmp_path / "none.yaml", (), ())


def test_a_run_has_the_keys_of_the_scan_and_what_it_has_left(read, tmp_path):
    places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
    first, second = read("runs: {x: {model.hidden: 8}, y: {model.hidden: 9}}", *places)
    files = CampaignFiles(tmp_path, 2, ("run=a-x",))
    write_json(files.paths.run_config(), files.campaign.run_keys)
    files.trained(files.name(0))
    assert (first.files().keys, len(first.files().receipts)) == ({"model.hidden": 8}, 1)
    assert (second.files().keys, second.files().receipts) == ({"model.hidden": 9}, ())


@pytest.fixture
def scanned(read, tmp_path, monkeypatch):
    """Run a scan of three runs, each of which ends as it is told."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in module.HEAD_SIGNALS}
    asked = []

    def scan(*ends, **changes):
        left = list(ends)

        def attempt(request, _, stop):
            asked.append(request)
            end = left.pop(0)
            if end in before:
                signal.raise_signal(end)
                end = 128 + end
            return WorkflowEnd(end, text=f"end of {request.overrides[-1]}" if end else "")

        monkeypatch.setattr(module, "_attempt", attempt)
        given = RunRequest(
            (Path("mine.yaml"),), (MUONS, "run=a"), ("train_all",), 0, "", "2", False, ("--quiet",), (), 0.0
        )
        request = replace(given, typed=("crpipe", "scan", "scan.yaml"), **changes)
        (tmp_path / "mine.yaml").write_text("")
        runs = read("runs: {x: {model.hidden: 8}, y: {model.hidden: 9}, z: }")
        screen, stop = Lines(), StopRequest()
        return run_scan(runs, request, screen, stop), screen, asked

    yield scan
    for number, handler in before.items():
        signal.signal(number, handler)


def test_runs_follow_each_other_each_by_a_command_of_its_own(scanned):
    code, screen, asked = scanned(0, 0, 0)
    assert (code, screen) == (0, ["run 1 of 3: a-x", "run 2 of 3: a-y", "run 3 of 3: a-z"])
    assert asked[0].typed == (
        *("crpipe", "--config", "mine.yaml", "--set", MUONS, "--set", "run=a", "--set", "model.hidden=8"),
        *("--set", "run=a-x", "run", "train_all", "--cores", "2", "--", "--quiet"),
    )
    assert [request.config().run for request in asked] == ["a-x", "a-y", "a-z"]


def test_a_run_that_fails_stops_no_other_and_is_named_at_the_end(scanned):
    code, screen, asked = scanned(76, 0, -9)
    assert (code, len(asked)) == (1, 3)
    assert screen[1] == "end of run=a-x"
    names = "a-x (exit code 76), a-z (exit code 137)"
    assert screen[-1] == f"2 of 3 runs failed: {names}; to try them again: crpipe scan scan.yaml"


def test_the_exit_code_is_that_of_all_that_failed(scanned):
    assert scanned(76, 0, 76)[0] == 76


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_scan(scanned, number):
    code, screen, asked = scanned(0, number, 0)
    assert (code, len(asked)) == (128 + number, 2)
    assert screen[-1] == "Stopped as asked; continue with: crpipe scan scan.yaml"


def test_another_workflow_of_the_directory_ends_the_scan(scanned):
    code, _, asked = scanned(LeaseError.exit_code, 0, 0)
    assert (code, len(asked)) == (LeaseError.exit_code, 1)


def test_a_wrong_option_is_refused_before_any_run(scanned):
    with pytest.raises(ConfigError, match="name the configuration before it"):
        scanned(0, 0, 0, more=("--configfile", "x.yaml"))
    with pytest.raises(ConfigError, match="no folder slurm in"):
        scanned(0, 0, 0, profile="slurm")


def test_keys_are_passed_on_as_yaml_reads_them(read):
    (run,) = read("runs: {x: {train.init_map: {a: 'b: c'}, train.pretrained: '1000', model.hidden: 8}}")
    assert run.config.train.pretrained == "1000"
    assert run.config.train.init_map == {"a": "b: c"}
    assert run.keys["train.init_map"] == {"a": "b: c"}
