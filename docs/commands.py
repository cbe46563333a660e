"""The page of all commands, written from the command line itself when the site is built."""

import typer

from crpipe.cli.verbs import ALWAYS, EXITS, GROUPS, PANEL, VERBS, described, each_verb

HEAD = """\
# Commands

Written from the command line itself; `crpipe VERB --help` shows the same. The
tests read every example on this page as a call of `crpipe`; the other pages show the verbs at work.

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
options, links, checkpoints, runs, and the keys of `--set`: those of the configuration that the line
names, or that the directory has.

## Exit codes

| code | meaning |
|---|---|
"""
GROUP = """
## {group}

"""


def manual(root):
    """Write the page in Markdown; ``root`` is the group of all verbs."""
    commands = dict(each_verb(root))
    parts = [HEAD, *(f"| {code} | {meaning} |\n" for code, meaning in EXITS.items())]
    parts.append(f"\nAny verb may end with {', '.join(map(str, ALWAYS))}; each section names the others.\n")
    for group in GROUPS:
        inside = [name for name, entry in VERBS.items() if entry.group == group]
        parts.append(GROUP.format(group=group))
        parts += [f"- [`crpipe {name}`](#crpipe-{name.replace(' ', '-')})\n" for name in inside]
        parts += [section(name, commands[name], VERBS[name]) for name in inside]
    return "".join(parts)


def section(name, command, entry):
    context = typer.Context(command, info_name=f"crpipe {name}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    own = [param for param in command.params if param.rich_help_panel != PANEL]
    lines = [f"\n### `crpipe {name}`", "", " ".join(command.help.split()), "", f"    {usage}", ""]
    rows = [described(param, context) for param in own if param.help]
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|"]
        lines += [f"| `{cell(words)}` | {cell(meaning)} |" for words, meaning in rows]
        lines.append("")
    lines += ["Example:", "", f"    {entry.example}", ""]
    if entry.reads:
        lines.append(f"Keys it reads: {', '.join(f'`{key}`' for key in entry.reads.split(', '))}.")
    if entry.exits:
        lines.append(f"Exit codes: {', '.join(map(str, entry.exits))}.")
    path, _, anchor = entry.page.partition("#")
    lines.append(f"More: [{path}]({path}{f'#{anchor}' if anchor else ''}).")
    return "\n".join(lines) + "\n"


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")
