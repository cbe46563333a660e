import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from crpipe.config import reference as config_docs
from crpipe.config.loading import flatten, load_config

REPOSITORY = Path(__file__).parents[3]
CONFIG = load_config([REPOSITORY / "config" / "config.yaml"])
SCHEMA = json.loads(config_docs.schema_json())


def test_the_committed_file_is_what_the_tree_generates():
    path = "config/config.yaml"
    assert (REPOSITORY / path).read_text() == config_docs.default_yaml(CONFIG), (
        f"run: crpipe --config {path} config default > new && mv new {path}"
    )


def test_what_is_printed_reads_back_as_the_same_configuration(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(config_docs.default_yaml(CONFIG))
    assert load_config([path]) == CONFIG


def test_an_option_that_holds_sections_is_printed_with_their_keys():
    text = config_docs.default_yaml(load_config([REPOSITORY / "config" / "xec-demo.yaml"]))
    tasks = next(line.strip("# ") for line in text.splitlines() if "# tasks: " in line)
    assert yaml.safe_load(tasks)["tasks"]["energy"]["loss"] == "smooth_l1"


def test_every_key_is_in_the_file_and_in_the_table():
    sections = ("reader", "simulator", "model")
    keys = [f"{section}.{name}" for section in sections for name, _ in flatten(CONFIG.options(section))]
    keys += [name for name, _ in flatten(CONFIG.model_dump()) if name not in sections]
    documented = {entry.dotted for entry in config_docs.entries(CONFIG)}
    table, text = config_docs.key_table(CONFIG), config_docs.default_yaml(CONFIG)
    assert set(keys) <= documented
    for name in keys:
        assert f"| `{name}` |" in table
        assert f"{name.rpartition('.')[2]}: " in text


def test_a_commented_option_of_the_workload_is_set_by_removing_its_mark(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(config_docs.default_yaml(CONFIG).replace("# hidden: ", "hidden: 1"))
    assert load_config([path]).options()["hidden"] == int(f"1{CONFIG.options()['hidden']}")


@pytest.mark.parametrize("name", ["config.yaml", "demo.yaml"])
def test_the_schema_accepts_the_repositorys_configurations(name):
    tree = yaml.safe_load((REPOSITORY / "config" / name).read_text())
    empty = [["reader"], ["simulator"], ["model"]]  # a section whose keys are all comments
    errors = [e for e in Draft202012Validator(SCHEMA).iter_errors(tree) if list(e.path) not in empty]
    assert errors == []


@pytest.mark.parametrize("tree", [{"sorce": {}}, {"seed": -1}, {"source": {"on_bad_file": "maybe"}}])
def test_the_schema_refuses_what_the_program_refuses(tree):
    assert list(Draft202012Validator(SCHEMA).iter_errors(tree))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer at least 1, at most 9"),
        ({"type": "number", "exclusiveMinimum": 0.0}, "number above 0"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number or null"),
        ({"enum": ["a", "b"], "type": "string"}, "one of a, b"),
        ({"type": "array", "items": {"type": "string"}}, "list, each text"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "mapping of names to text"),
        ({}, "any value"),
        ({"type": "array", "items": {}}, "list, each any value"),
        ({"type": "object", "additionalProperties": True}, "mapping of names to any value"),
        ({"type": "object"}, "mapping of names to any value"),
    ],
)
def test_legal_values_in_words(schema, said):
    assert config_docs.legal_values(schema) == said
