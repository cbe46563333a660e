"""The call of crpipe that jobs share."""

import shlex

import pytest
import yaml

from crpipe.config.loading import load_config, read_tree
from crpipe.core.errors import ConfigError
from crpipe.workflow.rules import (
    allocator_settings,
    crpipe_call,
    one_line,
    only_looks,
    overrides,
    search_path,
    start_ranks,
    training_call,
)


@pytest.fixture
def mine(tmp_path):
    """A configuration file of a user."""
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 3\nsource: {look_ahead: 2}\n")
    return path


@pytest.mark.parametrize("words", ["--lint", "--report=report.html", "--dag all", "-S", "--cores 1 --unlock"])
def test_calls_that_run_no_job_only_look(words):
    assert only_looks(words.split())


@pytest.mark.parametrize("words", ["", "all --cores 2", "--configfile report", "--config run=--lint"])
def test_calls_that_run_jobs_do_not_only_look(words):
    assert not only_looks(words.split())


def test_overrides_are_what_the_files_do_not_say(mine):
    config = {"seed": 3, "source": {"look_ahead": 4, "attempts": 9}}
    assert overrides([mine], config) == ["source.look_ahead=4", "source.attempts=9"]
    assert overrides([mine], read_tree([mine])[0]) == []


@pytest.mark.parametrize(
    "value", ["", "a: b", "$(touch x)", "it's", ["0000000-0000999"], None, True, 1e-7, "x" * 5000, {}]
)
def test_a_value_comes_back_from_its_one_line(value):
    text = one_line(value)
    assert "\n" not in text
    assert yaml.safe_load(text) == value


def test_a_call_can_be_pasted_into_a_shell_whatever_its_values_are(mine):
    changes = overrides([mine], {"run": "night", "results": "$(touch x) a b'c"})
    words = shlex.split(crpipe_call([mine], changes))
    assert words[:3] == ["crpipe", "--config", str(mine)]
    settings = load_config([mine], words[4::2])
    assert (settings.run, settings.results, settings.seed) == ("night", "$(touch x) a b'c", 3)


@pytest.mark.parametrize(
    ("nodes", "processes", "start"),
    [
        (1, 1, "crpipe x"),
        (1, 4, "torchrun --standalone --nproc-per-node=4 -m crpipe x"),
        (2, 1, "srun --nodes=2 --ntasks=2 torchrun --nnodes=2 --nproc-per-node=1 "),
        (3, 2, "srun --nodes=3 --ntasks=3 torchrun --nnodes=3 --nproc-per-node=2 "),
    ],
)
def test_training_starts_its_processes_on_each_node(nodes, processes, start):
    call = training_call("crpipe x", nodes, processes)
    assert call.startswith(start)
    assert call.endswith("crpipe x")


def test_programs_beside_the_interpreter_come_first_and_once():
    assert search_path("/env/bin/python", ["/usr/bin", "/env/bin", "/bin"]) == "/env/bin:/usr/bin:/bin"


def test_segments_of_gpu_memory_grow_unless_a_person_says_otherwise():
    assert allocator_settings({"PATH": "/bin"}) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert allocator_settings({"PYTORCH_ALLOC_CONF": ""}) == {}
    assert allocator_settings({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}) == {}


def test_ranks_on_several_nodes_are_left_to_a_job_that_has_them(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    said = r"train\.nodes: 2 nodes .*crpipe run.*srun --nodes=2 .*--nproc-per-node=3 .*-m crpipe train 7"
    with pytest.raises(ConfigError, match=said):
        start_ranks(2, 3, "7")
    start_ranks(1, 1, "7")
    monkeypatch.setenv("WORLD_SIZE", "6")
    start_ranks(2, 3, "7")
