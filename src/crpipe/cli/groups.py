"""What the help says of each verb besides its own words: group, example, keys, exit codes, page of docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    "config default": VerbEntry(START, "crpipe config default", (), (), "configuration.md"),
    "config schema": VerbEntry(START, "crpipe config schema", (), (), "configuration.md"),
    "config table": VerbEntry(START, "crpipe config table -c mine.yaml", (), (), "configuration.md"),
    "config commands": VerbEntry(START, "crpipe config commands", (), (), "commands.md"),
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
    "federation up": VerbEntry(
        TOOLS, "crpipe federation up /tmp/federation", (), (69,), "pelican.md#try-it-on-this-machine"
    ),
    "federation down": VerbEntry(
        TOOLS, "crpipe federation down /tmp/federation", (), (69,), "pelican.md#try-it-on-this-machine"
    ),
    "tb merge": VerbEntry(
        TOOLS, "crpipe tb merge --src runs --dst all-runs", (), (74,), "watching.md#tensorboard"
    ),
    "version": VerbEntry(TOOLS, "crpipe version", (), (), "commands.md"),
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
