"""`crpipe init`: answers in, a commented YAML file out, and the folder that the workflow runs in."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import crpipe
from crpipe.campaign.readers import open_reader
from crpipe.config.loading import AUTO, SYNTHETIC, validate
from crpipe.config.reference import comment, entries, scalar
from crpipe.core.errors import ConfigError
from crpipe.core.files import atomic_write, disk_errors, make_folder
from crpipe.core.ranges import Range
from crpipe.source.suggestions import suggest_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.config.loading import Tree

# What a user changes first; besides, every key that a starting configuration or an answer sets.
SHOWN = (
    "run",
    "results",
    "source.uri",
    "source.reader",
    "source.max_files",
    "ranges.first",
    "ranges.last",
    "ranges.step",
    "split.threshold",
    "split.validation_fraction",
    "load.batch_events",
    "load.budget_items",
    "train.workload",
    "train.ranges_per_link",
    "train.epochs",
    "train.gpus",
)
_RANGES = {"first": 0, "last": 99_999, "step": 1000}
_HEADER = """\
# The keys of this campaign that one changes first: meaning, then [legal values; what a change of it changes].
# A key marked `data` changes the shards, `train` the checkpoints. All other keys are in config/config.yaml,
# with their values; a key that is written here wins. Relative paths start at the directory in which the
# commands are run, and that is this one.
"""


@dataclass(frozen=True, slots=True)
class InitConfig:
    """What a workload begins with.

    readers: ``module:Name`` of its readers, the first is the default; each with ``about``, what it reads, and
        ``extra``, what pip has to install for it. extras: those that its evaluation needs, and why.
    always, synthetic: keys of the configuration for any files, and those besides for simulated ones.
    """

    about: str
    readers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)
    always: Tree = field(default_factory=dict)
    synthetic: Tree = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the user said; an empty value means what the starting configuration has."""

    workload: str
    uri: str
    files: str = ""
    reader: str = ""
    simulator: str = ""
    results: str = ""
    run: str = ""
    ranges: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """Whether a simulator makes the files."""
        return self.uri == SYNTHETIC


@cache
def init_configs() -> dict[str, InitConfig]:
    """Read what each workload of this installation begins with, by its short name."""
    files = sorted((Path(crpipe.__file__).parent / "workloads").glob("*/start.yaml"))
    return {path.parent.name: InitConfig(**yaml.safe_load(path.read_text())) for path in files}


def find_init_config(workload: str) -> InitConfig:
    """Find what a workload begins with, by short name or ``module:Name``; raise ConfigError for others."""
    configs = init_configs()
    if not workload:
        raise ConfigError(f"--workload: not given; write one of {', '.join(configs)}, or module:Name")
    if workload in configs:
        return configs[workload]
    if ":" in workload:
        return InitConfig(workload, always={"train": {"workload": workload}})
    raise ConfigError(
        f"--workload {workload}: not known; write one of {', '.join(configs)}, or module:Name of your own"
    )


def default_run(workload: str) -> str:
    """Name a run after its workload."""
    return workload.rpartition(":")[2]


def complete(answers: Answers, folder: Path) -> tuple[Answers, list[str]]:
    """Find the files that the user named, and fill in the ranges that fit; also return what was found.

    Raise ConfigError with what lies there when no file matches.
    """
    init_config = find_init_config(answers.workload)
    if not (answers.uri or answers.files):
        raise ConfigError(
            "--uri: not given; name the raw files, for example --uri '/data/{range}/*.parquet', or try "
            "--uri synthetic://"
        )
    uri, files = _from_here(answers.uri, folder), _from_here(answers.files, folder)
    suggestion = suggest_ranges(uri, files)
    usual = init_config.synthetic.get("ranges", _RANGES) if answers.simulated else _RANGES
    ranges = {**usual, **suggestion.ranges, **answers.ranges}
    if "skip" in ranges:
        ranges = _with_skip(ranges, suggestion.ranges)
    lines = [f"found: {suggestion.text}"] if suggestion.text else []
    return replace(answers, uri=uri, files=files, ranges=ranges), lines


def _from_here(uri: str, campaign: Path) -> str:
    """Make a relative path of this directory absolute where the campaign's commands run in another one."""
    if not uri or "://" in uri or Path(uri).is_absolute() or campaign.resolve() == Path.cwd().resolve():
        return uri
    return os.path.normpath(Path.cwd() / uri)


def _with_skip(ranges: Tree, suggested: Mapping[str, Any]) -> Tree:
    """Keep of the missing ranges those that are among the ranges which the user chose."""
    skip = [] if any(ranges[name] != suggested[name] for name in ("first", "step")) else ranges["skip"]
    skip = [name for name in skip if ranges["last"] == AUTO or Range.parse(name).last <= ranges["last"]]
    return {**ranges, "skip": skip} if skip else {name: ranges[name] for name in ranges if name != "skip"}


def compose(answers: Answers) -> Tree:
    """Make the configuration of a campaign from complete answers; raise ConfigError when it is none."""
    init_config = find_init_config(answers.workload)
    run = answers.run or default_run(answers.workload)
    source = {
        "uri": answers.uri,
        "files": answers.files,
        "reader": answers.reader or _default_reader(init_config, simulated=answers.simulated),
        "simulator": answers.simulator,
        "tables": dict(answers.tables),
    }
    tree: Tree = {}
    for part in (
        init_config.always,
        init_config.synthetic if answers.simulated else {},
        {"run": run, "results": answers.results or f"results/{run}"},
        {"source": {name: value for name, value in source.items() if value}},
        {"ranges": dict(answers.ranges)},
    ):
        tree = _merged(tree, part)
    for name in ("reader", *(["simulator"] if answers.simulated else [])):
        if name not in tree["source"]:
            raise ConfigError(f"--{name}: this workload names none; add --{name} module:Name")
    validate(tree)
    return tree


def extras_of(reader: str, workload: str) -> dict[str, str]:
    """Name the extras that a reader and the evaluation of a workload need, each with the reason."""
    extras: dict[str, str] = {}
    for init_config in init_configs().values():
        if init_config.always["train"]["workload"].partition(":")[0] == workload.partition(":")[0]:
            extras |= init_config.extras
        extra = init_config.readers.get(reader, {}).get("extra")
        if extra:
            extras[extra] = f"for the reader {reader.rpartition(':')[2]}"
    return extras


def lacking_tables(tree: Tree) -> list[str]:
    """Name the side tables that the reader needs and the configuration does not name."""
    config = validate(tree)
    if config.simulates():
        return []
    reader = open_reader(config.source.reader, config.options("reader"))
    return sorted({*reader.needs} - {*config.source.tables})


def _merged(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Merge one tree over another, key by key."""
    both = {
        name: _merged(tree, over[name]) for name, tree in base.items() if isinstance(over.get(name), dict)
    }
    return {**base, **over, **both}


def _default_reader(init_config: InitConfig, *, simulated: bool) -> str:
    """Name the reader where the user named none; that of simulated files may be another one."""
    if simulated and "reader" in init_config.synthetic.get("source", {}):
        return ""
    return next(iter(init_config.readers), "")


def render(tree: Tree) -> str:
    """Write a configuration as YAML with a comment above every key; the comments are those of the models."""
    lines = [_HEADER]
    heads: list[list[str]] = []  # of the sections that a key is in, each written before its first key
    for entry in entries(validate(tree)):
        del heads[entry.depth :]
        indent, given = "  " * entry.depth, _given(tree, entry.dotted)
        if entry.section:
            blank = [] if entry.depth else [""]
            heads.append([*blank, *comment(entry.meaning, indent), f"{indent}{entry.name}:"])
        elif given or entry.dotted in SHOWN:
            for head in heads:
                lines += head
                head.clear()
            note = "; ".join(part for part in (entry.legal, entry.changes) if part)
            lines += comment(f"{entry.meaning}  [{note}]", indent)
            lines += [f"{indent}{entry.name}: {_scalar(given[0] if given else entry.value)}"]
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """Write a value on one line; text with braces is always quoted: they begin a mapping there."""
    braces = isinstance(value, str) and "{" in value
    return json.dumps(value, ensure_ascii=False) if braces else scalar(value)


def _given(tree: Tree, dotted: str) -> list[Any]:
    """Return the one value of a key; none where the tree does not have it."""
    node: Any = tree
    for part in dotted.split("."):
        if not isinstance(node, dict) or part not in node:
            return []
        node = node[part]
    return [node]


# The folder of a campaign: workflow, configuration and profiles, as this installation has them.


_PATTERNS = Path(__file__).with_name("workflow_files.txt")
CONFIGURATION = Path("crpipe.yaml")
# What only the workflow of crpipe has.
_MARK = Path("workflow/rules/common.smk")


def workflow_home() -> Path:
    """Return the folder that holds the workflow's files: in the wheel, or the root of the checkout.

    Raise ConfigError where the installation has none.
    """
    package = Path(crpipe.__file__).parent
    for home in (package / "setup" / "folder", package.parent.parent):
        if (home / _MARK).exists():
            return home
    raise ConfigError(
        f"{package}: this installation has no workflow; install crpipe from its wheel, or from a clone with "
        "pip install -e ."
    )


def workflow_files() -> dict[Path, bytes]:
    """Read every file that the workflow needs in the folder of a campaign: path in there, and content."""
    home = workflow_home()
    patterns = [line for line in _PATTERNS.read_text().splitlines() if not line.startswith("#")]
    paths = [path for pattern in patterns for path in sorted(home.glob(pattern))]
    paths.sort(key=lambda path: path == home / _MARK)  # written last: where it is, the workflow is whole
    return {path.relative_to(home): path.read_bytes() for path in paths}


def has_workflow(folder: Path) -> bool:
    """Return whether crpipe's workflow is in a folder."""
    return (folder / _MARK).exists()


def start_campaign(folder: Path, configuration: str, *, force: bool = False) -> list[str]:
    """Write a campaign's configuration, and the workflow where the folder has none or with ``force``.

    Return what was written and what to type next, as lines. Nothing is written where a file with other
    content is in the way; ``force`` keeps it as NAME.old.
    """
    workflow = workflow_files() if force or not has_workflow(folder) else {}
    # The configuration last: where it is, the folder is ready.
    written = write_files(folder, {**workflow, CONFIGURATION: configuration.encode()}, force=force)
    tops = dict.fromkeys(path.parts[0] + ("/" if len(path.parts) > 1 else "") for path in written)
    lines = [f"wrote in {folder}: {', '.join(tops)}" if written else f"{folder}: nothing to change"]
    here = [] if folder.resolve() == Path.cwd().resolve() else [f"  cd {shlex.quote(str(folder))}"]
    return [
        *lines,
        "next:",
        *here,
        f"  (edit {CONFIGURATION})",
        "  crpipe doctor   # this machine, the source of the files, what is missing",
        "  crpipe plan     # what will run",
        "  crpipe run      # run it; the same command continues after any stop",
    ]


def changed_files(folder: Path) -> list[Path]:
    """Name the rules of the workflow in a folder that are not those of this version, or are missing."""
    rules = {
        path: text for path, text in workflow_files().items() if path.parts[0] in ("Snakefile", "workflow")
    }
    return [path for path, content in rules.items() if not _has_content(folder / path, content)]


def write_files(folder: Path, files: Mapping[Path, bytes], *, force: bool = False) -> list[Path]:
    """Write the files that are not there yet, and return their paths; nothing is written after an error.

    force: replace files with other content; each old one is kept as NAME.old. Without it they are a
    ConfigError.
    """
    new = {path: content for path, content in files.items() if not _has_content(folder / path, content)}
    taken = [path for path in new if _is_taken(folder / path)]
    if taken and not force:
        names = ", ".join(str(folder / path) for path in taken[:5])
        more = f" and {len(taken) - 5} more" if len(taken) > 5 else ""  # noqa: PLR2004 - as above
        raise ConfigError(
            f"{names}{more}: already there, with other content; nothing was written. Choose another "
            "folder, or add --force: then each old file is kept as NAME.old"
        )
    for path, content in new.items():
        with disk_errors(folder / path):
            make_folder((folder / path).parent)
            if path in taken:
                (folder / path).rename(_free_name(folder / path))
        with atomic_write(folder / path) as part:
            part.write_bytes(content)
    return list(new)


def _has_content(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _is_taken(path: Path) -> bool:
    """Return whether anything has a name, be it a link to nowhere."""
    return path.exists() or path.is_symlink()


def _free_name(path: Path) -> Path:
    """Return NAME.old, or the first of NAME.old2, NAME.old3 … that is free."""
    names = (
        path.with_name(f"{path.name}.old{number if number > 1 else ''}") for number in itertools.count(1)
    )
    return next(name for name in names if not _is_taken(name))
