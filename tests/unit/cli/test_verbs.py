"""The help of every verb, and the options that all of them share."""

import re
import runpy
import shlex
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from typer.main import get_command

from crpipe.cli.app import app
from crpipe.cli.terminal import Settings
from crpipe.cli.verbs import EXITS, FRONT, GROUPS, SUCCESSORS, VERBS, each_verb
from crpipe.config.loading import load_config
from crpipe.config.reference import entries
from crpipe.core import errors

REPOSITORY = Path(__file__).parents[3]


COMMANDS = dict(each_verb(get_command(app)))


KEYS = {entry.dotted for entry in entries(load_config([REPOSITORY / "config" / "config.yaml"]))}


def test_every_verb_has_its_entry_and_every_entry_is_a_verb():
    assert sorted(VERBS) == sorted(COMMANDS), "declare the new verb with its module's `verb`"


@pytest.mark.parametrize("name", VERBS)
def test_an_entry_names_what_exists(name):
    entry = VERBS[name]
    assert {*filter(None, entry.reads.split(", "))} <= KEYS
    assert set(entry.exits) <= set(EXITS)
    assert (REPOSITORY / "docs" / entry.page.partition("#")[0]).exists()


@pytest.mark.parametrize("name", VERBS)
def test_an_example_is_a_legal_call(name):
    words = shlex.split(VERBS[name].example)
    verb = name.split()
    assert words[: 1 + len(verb)] == ["crpipe", *verb]
    COMMANDS[name].make_context(name, words[1 + len(verb) :])


def test_a_second_sync_and_an_unreadable_file_have_their_exit_codes_in_the_help():
    assert errors.LeaseError.exit_code in VERBS["sync"].exits
    assert errors.MachineError.exit_code in VERBS["check"].exits


def test_every_exit_code_of_an_error_is_explained():
    codes = {getattr(error, "exit_code", 0) for error in vars(errors).values() if isinstance(error, type)}
    assert codes <= set(EXITS)


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_has_an_example_exit_codes_and_a_page(name):
    command = COMMANDS[name]
    shown = " ".join(command.get_help(typer.Context(command, info_name=f"crpipe {name}")).split())
    assert f"Example: {VERBS[name].example}" in shown
    codes = re.findall(r"\d+", shown.rpartition("Exit codes:")[2].partition("(")[0])
    assert codes == [str(code) for code in sorted({*VERBS[name].exits, 0, 2, 130})]
    assert not re.search(r"<(str|int|float|bool|list|path|file)\b|list\[|Path\b", shown), (
        "types of Python are not for people"
    )
    assert "CRPIPE_CONFIG" not in shown
    assert f"More: docs/{VERBS[name].page}" in shown


def test_the_verbs_are_listed_in_their_groups():
    root = get_command(app)
    names = [name for group in GROUPS for name, entry in VERBS.items() if entry.group == group]
    assert list(root.commands) == list(dict.fromkeys(name.partition(" ")[0] for name in names))


def test_the_help_shows_the_verbs_for_people_on_one_screen_and_steps_all_others(call):
    shown, others = call("--help")[1], call("steps")[1]
    front = [name for name, entry in VERBS.items() if entry.group in FRONT]
    assert len(shown.splitlines()) < 24
    assert max(map(len, shown.splitlines())) <= 80
    assert re.findall(r"^  (\S+) ", shown, re.MULTILINE) == sorted(front, key=shown.index)
    assert len(front) == 14
    assert [name for name in VERBS if name not in front and f"\n  {name} " not in others] == []
    assert [code for code in EXITS if f"\n{code:5d}  " not in others] == []


@pytest.mark.parametrize("name", SUCCESSORS)
def test_a_verb_of_an_earlier_version_names_its_successor(call, name):
    ended, out, err = call(*name.split(), "x")
    assert (ended, out) == (2, "")
    assert err == f"crpipe: crpipe {name} is now {SUCCESSORS[name]}\n"
    words = re.search(r"crpipe( [a-z][a-z-]*)?", SUCCESSORS[name])[0].split()[1:]
    assert {*words} <= {*COMMANDS}


@pytest.mark.parametrize(
    ("words", "near"),
    [("paln", "; did you mean plan?"), ("config chek", "; did you mean check?"), ("qqq", "")],
)
def test_a_verb_that_is_none_names_the_nearest(call, words, near):
    ended, out, err = call(*words.split(), "--json")
    assert (ended, out) == (2, "")
    assert err == f"crpipe: crpipe {words}: no such verb; crpipe --help and crpipe steps list all{near}\n"


def test_the_page_of_all_commands_has_a_section_for_each():
    page = runpy.run_path(str(REPOSITORY / "docs" / "commands.py"))["manual"](get_command(app))
    assert [name for name in VERBS if f"\n### `crpipe {name}`\n" not in page] == []


def commands(group, prefix=()):
    """Yield every verb and group of verbs with the words that call it."""
    for name, command in group.commands.items():
        yield (*prefix, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "mine.yaml", "--set", "seed=5", "config", "default"],
        ["config", "--config", "mine.yaml", "--set", "seed=5", "default"],
        ["config", "default", "--config", "mine.yaml", "--set", "seed=5"],
        ["config", "default", "--set=seed=5", "-c", "mine.yaml"],
        ["-s", "seed=4", "config", "-c", "mine.yaml", "default", "-s", "seed=5"],
    ],
)
def test_the_configuration_may_be_named_on_both_sides_of_a_verb(call, tmp_path, words):
    (tmp_path / "mine.yaml").write_text("run: mine\nseed: 3\n")
    ended, out, _ = call(*words)
    assert ended == 0
    assert "\nrun: mine\n" in out
    assert "\nseed: 5\n" in out


def test_several_files_win_in_the_order_of_their_words(call, tmp_path):
    for number in (1, 2):
        (tmp_path / f"{number}.yaml").write_text(f"seed: {number}\n")
    assert "\nseed: 2\n" in call("-c", "1.yaml", "config", "default", "-c", "2.yaml")[1]
    assert "\nseed: 1\n" in call("-c", "2.yaml", "config", "default", "-c", "1.yaml")[1]


def test_a_call_starts_without_the_options_of_the_call_before(call, tmp_path):
    (tmp_path / "mine.yaml").write_text("run: mine\n")
    call("-c", "mine.yaml", "config", "default", "-s", "seed=7")
    assert (Settings.files, Settings.overrides) == ((Path("mine.yaml"),), ("seed=7",))
    assert "\nrun: default\n" in call("config", "default")[1]


def test_every_verb_and_group_has_a_sentence_and_shows_the_shared_options_once():
    for words, command in commands(get_command(app)):
        assert command.help.endswith("."), words
        taken = [name for param in command.params for name in param.opts]
        assert taken.count("--config") == 1, words
        assert taken.count("--set") == 1, words


def test_the_own_option_of_a_verb_keeps_its_meaning():
    fork = dict(commands(get_command(app)))["fork",]
    (changes,) = [param for param in fork.params if {"--set", "-s"} & {*param.opts}]
    assert changes.name == "changes"


@pytest.mark.parametrize("words", [[], ["config"], ["tb"]])
def test_a_group_of_verbs_alone_prints_its_help(call, words):
    ended, out, err = call(*words)
    assert (ended, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(['crpipe', *words])} {'[OPTIONS] COMMAND' if words else 'VERB'}")


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_is_printed(call, word):
    ended, out, _ = call(word)
    assert ended == 0
    assert out[0].isdigit()


def test_an_option_without_a_verb_is_refused(call):
    ended, _, err = call("--set", "seed=1")
    assert ended == 2
    assert "Missing command" in err


def test_no_file_is_refused_before_its_verb_opens_it():
    checked = {}
    for words, command in commands(get_command(app)):
        hints = get_type_hints(command.callback, include_extras=True) if command.callback else {}
        for name, hint in hints.items():
            for option in getattr(hint, "__metadata__", ()):
                if "Path" in str(hint.__origin__):
                    checked[words, name] = option.readable
    assert (("inspect",), "file") in checked
    assert [place for place, refused in checked.items() if refused] == []


def test_a_configuration_is_opened_also_where_access_cannot_be_asked(call, monkeypatch):
    Path("mine.yaml").write_text("seed: 5\n")
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    _, _, told = call("config", "check", "--config", "mine.yaml")
    assert "source.reader: not set" in told


def test_the_page_of_operations_explains_every_exit_code():
    """It lacked 85, and 129 of a closed terminal."""
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| ([\d, ]+) \|", page.partition("## Exit codes")[2], re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == {*EXITS} - {0}


def test_the_usage_has_no_brace_of_typer(capsys):
    with pytest.raises(SystemExit):
        app(["compare", "--help"])
    assert "compare [OPTIONS] RUN...\n" in capsys.readouterr().out


def test_run_names_the_exit_codes_of_its_refusals():
    """A full disk (74), a plug-in that raises (70) and a missing library (69) end it before any job."""
    assert {69, 70, 74} <= {*VERBS["run"].exits} & {*VERBS["scan"].exits}
