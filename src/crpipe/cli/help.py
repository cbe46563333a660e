"""What the help says of each verb, the options that all verbs share, and the page that is made of both."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from crpipe.cli import completion
from crpipe.cli.terminal import Settings, completing

if TYPE_CHECKING:
    from collections.abc import Iterator

START = "Start"
LOOK = "Look at a campaign"
STEPS = "Steps that the workflow runs"
USE = "Use a model"
TOOLS = "Tools"

EXITS = {
    0: "done",
    1: "training cannot start or go on, a GPU has too little memory, or a job of `crpipe run` failed",
    2: "the configuration or the call is wrong",
    65: "data or a checkpoint is damaged or does not fit",
    66: "the source does not hold what it should",
    69: "an optional library is missing, or has a version that does not fit",
    70: "a reader, simulator or workload raised an exception",
    74: "a disk, a file server or the memory failed; the same command again later",
    75: "another job holds it, Slurm does not answer, or a signal came and a snapshot is written: try again",
    76: "training diverged: a retry would diverge again",
    77: "access is refused: by the source (no token, an expired one, or one that does not cover the files), "
    "or by the permissions of a file",
    78: "`crpipe doctor` found something that will stop a campaign",
    130: "Ctrl-C",
    143: "SIGTERM",
}
# What any verb may end with.
ALWAYS = (0, 2, 130)


@dataclass(frozen=True, slots=True)
class VerbEntry:
    """One verb in the help.

    reads: sections or keys of the configuration; `run`, `results` and `runs` name the folders of all verbs.
    exits: exit codes besides those of ALWAYS. page: file in docs/, with the heading.
    """

    group: str
    example: str
    reads: tuple[str, ...]
    exits: tuple[int, ...]
    page: str


_SOURCE_EXITS = (66, 74, 75, 77)
_RANGE = "0042000-0042999"
_USE_READS = ("evaluate.batch_events", "load.budget_items", "train.threads")

# In the order of the help.
VERBS = {
    "init": VerbEntry(START, "crpipe init mine", (), (74,), "install.md"),
    "doctor": VerbEntry(START, "crpipe doctor", ("source", "results", "runs"), (78,), "install.md"),
    "config check": VerbEntry(
        START,
        "crpipe config check -c mine.yaml",
        ("source", "reader", "simulator", "train", "model"),
        (69, 70),
        "operations.md#start",
    ),
    "config default": VerbEntry(START, "crpipe config default", (), (), "operations.md#start"),
    "config schema": VerbEntry(START, "crpipe config schema", (), (), "operations.md#start"),
    "config table": VerbEntry(START, "crpipe config table -c mine.yaml", (), (), "operations.md#start"),
    "config commands": VerbEntry(START, "crpipe config commands", (), (), "operations.md#start"),
    "plan": VerbEntry(
        START,
        "crpipe plan --figure learning-rates.svg",
        ("source", "ranges", "split", "load", "train", "model"),
        (66, 69, 70),
        "watching.md#before-and-after-crpipe-plan-crpipe-summary",
    ),
    "run": VerbEntry(
        START,
        "crpipe run all --profile slurm",
        ("source", "ranges", "split", "train", "resources", "notify"),
        (1, 65, 66, 75, 77, 143),
        "operations.md#start",
    ),
    "inspect": VerbEntry(
        START,
        "crpipe inspect raw/0042000.parquet --rows 10",
        ("source.reader", "reader"),
        (66, 69, 70),
        "data.md#readers",
    ),
    "outliers suggest": VerbEntry(
        START,
        "crpipe outliers suggest",
        ("source.reader", "ranges", "load.batch_events"),
        (65, 66),
        "data.md",
    ),
    "probe": VerbEntry(
        START,
        f"crpipe probe --range {_RANGE} --steps 50",
        ("source.reader", "reader", "load", "train", "model"),
        (1, 65, 66, 69, 70),
        "training.md#looking-into-a-step",
    ),
    "status": VerbEntry(
        LOOK,
        "crpipe status --all",
        ("source", "ranges", "split.threshold", "train"),
        (65,),
        "watching.md#in-a-terminal-crpipe-status",
    ),
    "logs": VerbEntry(
        LOOK, f"crpipe logs {_RANGE} --follow", ("ranges", "train"), (), "watching.md#logs-crpipe-logs"
    ),
    "summary": VerbEntry(
        LOOK,
        "crpipe summary",
        ("ranges", "split.threshold", "train"),
        (65,),
        "watching.md#before-and-after-crpipe-plan-crpipe-summary",
    ),
    "report": VerbEntry(
        LOOK, "crpipe report", ("ranges", "train"), (65, 74), "watching.md#one-page-crpipe-report"
    ),
    "figures": VerbEntry(
        LOOK,
        "crpipe figures --progress",
        ("ranges", "split.threshold", "train"),
        (65, 74),
        "watching.md#figures-crpipe-figures",
    ),
    "compare": VerbEntry(
        LOOK,
        "crpipe compare first second --figure compare.svg",
        (),
        (65, 74),
        "training.md#changing-ones-mind",
    ),
    "check": VerbEntry(
        LOOK,
        f"crpipe check {_RANGE} --jobs 4",
        ("ranges", "train"),
        (65, 66, 77),
        "operations.md#check-that-all-is-there",
    ),
    "shards verify": VerbEntry(
        LOOK,
        f"crpipe shards verify {_RANGE} --deep",
        ("ranges",),
        (65,),
        "data.md#a-shard-is-a-pair-of-parquet-files",
    ),
    "count": VerbEntry(STEPS, "crpipe count", ("source", "ranges"), _SOURCE_EXITS, "data.md"),
    "tables": VerbEntry(STEPS, "crpipe tables", ("source",), _SOURCE_EXITS, "data.md#side-tables"),
    "list": VerbEntry(
        STEPS,
        f"crpipe list {_RANGE}",
        ("source", "ranges"),
        _SOURCE_EXITS,
        "data.md#where-the-raw-files-are",
    ),
    "stage": VerbEntry(
        STEPS, f"crpipe stage {_RANGE}", ("source",), (65, *_SOURCE_EXITS), "data.md#where-the-raw-files-are"
    ),
    "threshold": VerbEntry(
        STEPS, "crpipe threshold", ("split", "source.reader", "reader"), (65, 66, 70, 74), "data.md"
    ),
    "split": VerbEntry(
        STEPS,
        f"crpipe split {_RANGE}",
        ("split", "source.reader", "reader", "train.lease_wait_s"),
        (65, 66, 69, 70, 74, 75),
        "data.md#the-ledger",
    ),
    "consolidate": VerbEntry(
        STEPS, "crpipe consolidate", ("outliers", "train.lease_wait_s"), (65, 74, 75), "data.md"
    ),
    "train": VerbEntry(
        STEPS,
        f"crpipe train {_RANGE}",
        ("train", "model", "load"),
        (1, 65, 69, 70, 74, 75, 76),
        "training.md",
    ),
    "evaluate": VerbEntry(
        STEPS,
        "crpipe evaluate --checkpoint best",
        ("evaluate", "load.budget_items", "train.device", "train.threads"),
        (1, 65, 69, 70, 74),
        "training.md#validation-the-best-checkpoint-stopping-early",
    ),
    "notify": VerbEntry(
        STEPS,
        "crpipe notify stall",
        ("notify", "ranges", "train"),
        (),
        "watching.md#notifications-crpipe-notify",
    ),
    "predict": VerbEntry(
        USE,
        "crpipe predict --checkpoint best --in measured.parquet --out predicted.parquet",
        (*_USE_READS, "source.tables"),
        (1, 65, 66, 69, 70, 74),
        "export.md#predict",
    ),
    "generate": VerbEntry(
        USE,
        "crpipe generate --checkpoint latest --in wanted.csv --out generated.parquet",
        _USE_READS,
        (1, 65, 66, 69, 70, 74),
        "export.md#generate",
    ),
    "export": VerbEntry(
        USE,
        "crpipe export --checkpoint best --out model",
        ("source.reader", "reader", "train.workload"),
        (65, 69, 70, 74),
        "export.md#export",
    ),
    "fork": VerbEntry(
        USE,
        f"crpipe fork --from {_RANGE} --run gentler --set train.clip_norm=1.0",
        ("train", "ranges"),
        (65, 74),
        "training.md#changing-ones-mind",
    ),
    "shards export": VerbEntry(
        TOOLS,
        f"crpipe shards export {_RANGE} --out plain",
        ("source.reader", "reader"),
        (65, 74),
        "data.md#a-shard-is-a-pair-of-parquet-files",
    ),
    "simulate": VerbEntry(
        TOOLS,
        "crpipe simulate 0000000-0000007 --out files",
        ("source.simulator", "simulator", "seed"),
        (70, 74),
        "data.md#where-the-raw-files-are",
    ),
    "clean": VerbEntry(TOOLS, "crpipe clean", ("train.keep_links",), (65, 74, 75), "weeks.md"),
    "restore": VerbEntry(TOOLS, "crpipe restore", ("sync", "source"), (66, 74, 77), "weeks.md"),
    "sync": VerbEntry(TOOLS, "crpipe sync", ("sync", "source"), (66, 74, 77), "pelican.md#send-results-back"),
    "token": VerbEntry(TOOLS, "crpipe token", ("source",), (69, 77), "pelican.md#tokens"),
    "tb merge": VerbEntry(
        TOOLS, "crpipe tb merge --src runs --dst all-runs", (), (74,), "watching.md#tensorboard"
    ),
    "version": VerbEntry(TOOLS, "crpipe version", (), (), "operations.md#start"),
}


def each_verb(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every verb below a group of the command line, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from each_verb(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def arrange(root: Any) -> None:
    """Sort the verbs of the command line into their groups, and write the end of each one's help."""
    places = {name: number for number, name in enumerate(VERBS)}
    verbs = dict(each_verb(root))
    known = sorted(verbs, key=lambda name: places.get(name, len(places)))
    root.commands = {head: root.commands[head] for head in dict.fromkeys(map(_head, known))}
    for name in reversed(known):
        if name in VERBS:
            # A group of verbs is shown where the first of them is.
            root.commands[_head(name)].rich_help_panel = VERBS[name].group
            verbs[name].epilog = epilog(VERBS[name])


def epilog(entry: VerbEntry) -> str:
    """Write what is below the options of a verb."""
    codes = sorted((*ALWAYS, *entry.exits))
    lines = [f"Example: {entry.example}"]
    lines += [f"Keys it reads: {', '.join(entry.reads)}"] if entry.reads else []
    lines += [f"Exit codes: {'; '.join(f'{code} {EXITS[code]}' for code in codes)}"]
    return "\n".join([*lines, f"More: docs/{entry.page}"])


def _head(name: str) -> str:
    return name.partition(" ")[0]


# The options that every verb has, before the verb or after it: --config and --set.


PANEL = "Configuration (before the verb or after it)"


def _add_files(value: list[Path] | None) -> None:
    Settings.files += tuple(map(Path, value or ()))


def _add_overrides(value: list[str] | None) -> None:
    Settings.overrides += tuple(value or ())


def _shared(
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            callback=_add_files,
            expose_value=False,
            rich_help_panel=PANEL,
            readable=False,
            help="YAML file over config/config.yaml; several: repeat it, later ones win. "
            "Default: the files in CRPIPE_CONFIG, else crpipe.yaml",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY.SUB=VALUE",
            callback=_add_overrides,
            autocompletion=completing(completion.keys),
            expose_value=False,
            rich_help_panel=PANEL,
            help="value of one key, over the files; several: repeat it",
        ),
    ] = None,
) -> None:
    """Declare the shared options; nothing calls this."""


class VerbGroup(TyperGroup):
    """A group of verbs; without a verb it prints its help and ends with exit code 0."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of this group; print the help where there are none."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)


class Verbs(VerbGroup):
    """All verbs, in the groups of the help; each of them takes the shared options."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        arrange(self)
        donor = typer.Typer(add_completion=False)
        donor.command()(_shared)
        shared = get_command(donor).params
        for command in (self, *_below(self)):
            _add(command, shared)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before the verb; what an earlier call in this process left is dropped."""
        Settings.files, Settings.overrides = (), ()
        return super().parse_args(ctx, args)


def _below(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        yield command
        if hasattr(command, "commands"):
            yield from _below(command)


def _add(command: Any, shared: list[Any]) -> None:
    """Add the shared options; a name that the verb uses itself (`fork --set`) keeps the verb's meaning."""
    own = {name for param in command.params for name in param.opts}
    for param in shared:
        if param.opts[0] in own:
            continue
        free = copy.copy(param)
        free.opts = [name for name in param.opts if name not in own]
        command.params.append(free)


# The page of all commands, written when the site of the documentation is built.


_HEAD = """\
# Commands

Written by `crpipe config commands` from the command line itself; `crpipe VERB --help` shows the same. The
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
    lines.append(f"More: [{path}]({path}{f'#{anchor}' if anchor else ''}).")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
