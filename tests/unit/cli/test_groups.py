"""The help of every verb: complete, in groups, and the same as the page of all commands."""

import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from crpipe.cli.app import app
from crpipe.cli.help import EXITS, VERBS, each_verb, manual
from crpipe.config.loading import load_config
from crpipe.config.reference import entries
from crpipe.core import errors

REPOSITORY = Path(__file__).parents[3]
COMMANDS = dict(each_verb(get_command(app)))
KEYS = {entry.dotted for entry in entries(load_config([REPOSITORY / "config" / "config.yaml"]))}


def test_every_verb_has_its_entry_and_every_entry_is_a_verb():
    assert sorted(VERBS) == sorted(COMMANDS), "give the new verb an entry in cli/help.py"


@pytest.mark.parametrize("name", VERBS)
def test_an_entry_names_what_exists(name):
    entry = VERBS[name]
    assert set(entry.reads) <= KEYS
    assert set(entry.exits) <= set(EXITS)
    assert (REPOSITORY / "docs" / entry.page.partition("#")[0]).exists()


@pytest.mark.parametrize("name", VERBS)
def test_an_example_is_a_legal_call(name):
    words = shlex.split(VERBS[name].example)
    verb = name.split()
    assert words[: 1 + len(verb)] == ["crpipe", *verb]
    COMMANDS[name].make_context(name, words[1 + len(verb) :])


def test_every_exit_code_of_an_error_is_explained():
    codes = {getattr(error, "exit_code", 0) for error in vars(errors).values() if isinstance(error, type)}
    assert codes <= set(EXITS)


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_has_a_sentence_an_example_exit_codes_and_a_page(name, capsys):
    command = COMMANDS[name]
    command.get_help(typer.Context(command, info_name=f"crpipe {name}"))
    shown = " ".join(capsys.readouterr().out.split())
    assert command.help.endswith(".")
    assert f"Example: {VERBS[name].example}" in shown
    assert "Exit codes: 0 done; 1 " in shown or "Exit codes: 0 done; 2 " in shown
    assert f"docs/{VERBS[name].page}" in shown


def test_the_verbs_are_listed_in_their_groups():
    root = get_command(app)
    heads = dict.fromkeys(name.partition(" ")[0] for name in VERBS)
    assert list(root.commands) == list(heads)
    assert {command.rich_help_panel for command in root.commands.values()} == {
        entry.group for entry in VERBS.values()
    }


def test_the_page_of_all_commands_has_a_section_for_each():
    page = manual(get_command(app))
    assert [name for name in VERBS if f"\n### `crpipe {name}`\n" not in page] == []
