"""The page of all commands, docs/commands.md, from the command line itself and the table in groups."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from crpipe.cli.groups import ALWAYS, EXITS, VERBS, each_verb
from crpipe.cli.options import PANEL

if TYPE_CHECKING:
    from crpipe.cli.groups import VerbEntry

_HEAD = """\
# Commands

Written by `crpipe config commands` from the command line itself; `crpipe VERB --help` shows the same. A
noun with several actions has a verb for each (`config default`, `federation up`); an option changes how an
action is done (`token --login`). The tests read every example on this page as a call of `crpipe`; the other
pages show the verbs at work.

## The configuration

A verb reads, weakest first, `config/config.yaml` of the directory where it exists, and over it the files of
the user, key by key:

1. those that are named with `--config` (or `-c`), before or after the verb; later ones win;
2. else those that the variable `CRPIPE_CONFIG` names, separated as in `PATH` (by `:`);
3. else `crpipe.yaml` of the directory.

`--set KEY.SUB=VALUE` (or `-s`) is over all files. `snakemake` reads the same files in the same order, with
`--configfile` in place of `--config`, and `--config` in place of `--set`; its jobs get the files by name.
Where no file is named in any of these ways, the verbs say so in one line on stderr. `crpipe fork` has a
`--set` of its own: the keys of the new run. Relative paths, in the variable too, start at the working
directory.

## Names of ranges and links

Wherever a verb takes a range or a link, its number from 0 will do, or its beginning if no other name
begins so: `crpipe train 0`, `crpipe stage 00420`. A full name wins over a number, and a number over a
beginning. `--checkpoint` takes `best`, `latest`, a link, `LINK.best`, or a path, alike in each verb.

## Completion

`crpipe --install-completion` adds completion to the shell that it is called from (bash, zsh, fish,
PowerShell), and `crpipe --show-completion` prints what it would add. The Tab key then completes verbs and
options, ranges, links, checkpoints, runs, and the keys of `--set`: those of the configuration that the line
names, or that the directory has.

## Exit codes

| code | meaning |
|---|---|
"""
_GROUP = """
## {group}

"""


def manual(root: Any) -> str:
    """Write the page in Markdown; ``root`` is the group of all verbs."""
    commands = dict(each_verb(root))
    parts = [_HEAD, *(f"| {code} | {meaning} |\n" for code, meaning in EXITS.items())]
    parts.append(f"\nAny verb may end with {', '.join(map(str, ALWAYS))}; each section names the others.\n")
    listed = [name for name in VERBS if name in commands]
    for group, names in groupby(listed, key=lambda name: VERBS[name].group):
        inside = list(names)
        parts.append(_GROUP.format(group=group))
        parts += [f"- [`crpipe {name}`](#crpipe-{name.replace(' ', '-')})\n" for name in inside]
        parts += [_section(name, commands[name], VERBS[name]) for name in inside]
    return "".join(parts)


def _section(name: str, command: Any, entry: VerbEntry) -> str:
    context = typer.Context(command, info_name=f"crpipe {name}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    own = [param for param in command.params if param.rich_help_panel != PANEL]
    lines = [f"\n### `crpipe {name}`", "", " ".join(command.help.split()), "", f"    {usage}", ""]
    rows = [param.get_help_record(context) for param in own if param.help]
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|"]
        lines += [f"| `{_cell(words)}` | {_cell(meaning)} |" for words, meaning in rows]
        lines.append("")
    lines += ["Example:", "", f"    {entry.example}", ""]
    if entry.reads:
        lines.append(f"Keys it reads: {', '.join(f'`{key}`' for key in entry.reads)}.")
    if entry.exits:
        lines.append(f"Exit codes: {', '.join(map(str, entry.exits))}.")
    path, _, anchor = entry.page.partition("#")
    if path != "commands.md":
        lines.append(f"More: [{path}]({path}{f'#{anchor}' if anchor else ''}).")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
