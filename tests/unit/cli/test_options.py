"""The options that every verb has, on both sides of it."""

import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.main import get_command

from crpipe.cli.app import app, main
from crpipe.cli.terminal import Settings


@pytest.fixture
def crpipe(tmp_path, monkeypatch, capsys):
    """Call the command line in an empty working directory: crpipe(*words) -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["crpipe", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return (end.value.code, *capsys.readouterr())

    return call


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
def test_the_configuration_may_be_named_on_both_sides_of_a_verb(crpipe, tmp_path, words):
    (tmp_path / "mine.yaml").write_text("run: mine\nseed: 3\n")
    ended, out, _ = crpipe(*words)
    assert ended == 0
    assert "\nrun: mine\n" in out
    assert "\nseed: 5\n" in out


def test_several_files_win_in_the_order_of_their_words(crpipe, tmp_path):
    for number in (1, 2):
        (tmp_path / f"{number}.yaml").write_text(f"seed: {number}\n")
    assert "\nseed: 2\n" in crpipe("-c", "1.yaml", "config", "default", "-c", "2.yaml")[1]
    assert "\nseed: 1\n" in crpipe("-c", "2.yaml", "config", "default", "-c", "1.yaml")[1]


def test_a_call_starts_without_the_options_of_the_call_before(crpipe, tmp_path):
    (tmp_path / "mine.yaml").write_text("run: mine\n")
    crpipe("-c", "mine.yaml", "config", "default", "-s", "seed=7")
    assert (Settings.files, Settings.overrides) == ((Path("mine.yaml"),), ("seed=7",))
    assert "\nrun: default\n" in crpipe("config", "default")[1]


def test_every_verb_shows_the_shared_options_once():
    for words, command in commands(get_command(app)):
        taken = [name for param in command.params for name in param.opts]
        assert taken.count("--config") == 1, words
        assert taken.count("--set") == 1, words


def test_the_own_option_of_a_verb_keeps_its_meaning():
    fork = dict(commands(get_command(app)))["fork",]
    (changes,) = [param for param in fork.params if "--set" in param.opts]
    assert changes.name == "changes"


@pytest.mark.parametrize("words", [[], ["config"], ["shards"]])
def test_a_group_of_verbs_alone_prints_its_help(crpipe, words):
    ended, out, err = crpipe(*words)
    assert (ended, err) == (0, "")
    assert f"Usage: {' '.join(['crpipe', *words])} [OPTIONS] COMMAND" in out


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version_is_printed(crpipe, word):
    ended, out, _ = crpipe(word)
    assert ended == 0
    assert out[0].isdigit()


def test_an_option_without_a_verb_is_refused(crpipe):
    ended, _, err = crpipe("--set", "seed=1")
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


def test_a_configuration_is_opened_also_where_access_cannot_be_asked(crpipe, monkeypatch):
    Path("mine.yaml").write_text("seed: 5\n")
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    _, _, told = crpipe("config", "check", "--config", "mine.yaml")
    assert "source.reader: not set" in told
