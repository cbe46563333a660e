"""`crpipe init`: answers in, a commented YAML file out, and the folder that the workflow runs in."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import crpipe
from crpipe.campaign.declarations import InitConfig, declared_readers, init_configs
from crpipe.campaign.readers import ReaderChoice, open_reader
from crpipe.campaign.simulators import offered_tables, open_simulator
from crpipe.config.loading import AUTO, SYNTHETIC, Tree, flatten, validate
from crpipe.config.reference import comment, entries, scalar
from crpipe.core.errors import ConfigError
from crpipe.core.files import atomic_write, disk_errors, make_folder
from crpipe.core.ranges import Range
from crpipe.setup.compatibility import check_workload
from crpipe.setup.first_look import Plugins, choose, fitting_plugins, measure_sizes, why_unread
from crpipe.source.suggestions import SuggestedRanges, pattern_of, suggest_ranges
from crpipe.source.uris import host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# What a user changes first; besides, every key that a starting configuration or an answer sets.
SHOWN = (
    "run",
    "results",
    "source.uri",
    "source.reader",
    "source.max_files",
    "ranges.first",
    "ranges.last",
    "ranges.size",
    "split.outlier_above",
    "split.validation_fraction",
    "load.batch_size",
    "load.max_items",
    "train.workload",
    "train.ranges_per_link",
    "train.passes_per_link",
    "train.gpus",
)
_NO_WORKLOAD = "--workload: not given; write one of {}, or module:Name"
_RANGES = {"first": 0, "last": 99_999, "size": 1000}
_HEADER = """\
# Most people change four of these keys: train.passes_per_link, load.batch_size, split.outlier_above and
# split.validation_fraction. Above each key: its meaning, then [legal values; what a change of it changes]. A
# key marked `data` changes the shards, `train` the checkpoints. `crpipe config default` prints all other
# keys, with their values; a key that is written here wins. Relative paths start at the directory in which
# the commands are run, and that is this one.
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the user said; an empty value means what the starting configuration has.

    sample: some of the files, where they are on this machine; count: files in all, about.
    """

    workload: str
    uri: str
    files: str = ""
    reader: str = ""
    simulator: str = ""
    results: str = ""
    run: str = ""
    ranges: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    sample: tuple[Path, ...] = ()
    count: int = 0

    @property
    def simulated(self) -> bool:
        """Whether a simulator makes the files."""
        return self.uri == SYNTHETIC

    def local_tables(self) -> dict[str, Path]:
        """Return the side tables that are on this machine."""
        named = self.tables.items()
        return {name: Path(host_and_path(uri)[1]) for name, uri in named if scheme_of(uri) == "file"}


def find_init_config(workload: str) -> InitConfig:
    """Find what a workload begins with, by short name or ``module:Name``; raise ConfigError for others."""
    configs = init_configs()
    if not workload:
        raise ConfigError(_NO_WORKLOAD.format(", ".join(configs)))
    if workload in configs:
        return configs[workload]
    if ":" in workload:
        return InitConfig(about=workload, workload=workload)
    raise ConfigError(
        f"--workload {workload}: not known; write one of {', '.join(configs)}, or module:Name of your own"
    )


def default_run(workload: str) -> str:
    """Name a run after its workload."""
    return workload.rpartition(":")[2]


def find_files(answers: Answers, folder: Path) -> tuple[Answers, SuggestedRanges]:
    """Find the files that the user named, and the ranges that fit; a folder becomes the pattern of its files.

    Raise ConfigError with what lies there when no file matches.
    """
    if not (answers.uri or answers.files):
        raise ConfigError(
            "--uri: not given; name the raw files, for example --uri '/data/{range}/*.parquet', or try "
            "--uri synthetic://"
        )
    uri = _from_here(pattern_of(answers.uri) or answers.uri, folder)
    files = _from_here(answers.files, folder)
    tables = {name: _from_here(at, folder) for name, at in answers.tables.items()}
    suggestion = suggest_ranges(uri, files)
    answers = replace(
        answers, uri=uri, files=files, tables=tables, sample=suggestion.paths, count=suggestion.count
    )
    return answers, suggestion


def plugins_of(answers: Answers) -> list[Plugins]:
    """Name what reads the files, among the included workloads and readers, and fits with the answers."""
    return [
        each
        for each in fitting_plugins(answers.sample, declared_readers(), answers.local_tables())
        if answers.workload in ("", each.workload) and answers.reader in ("", each.reader)
    ]


def included_reader(path: Path) -> ReaderChoice | None:
    """Return the one included reader that reads a file; None for none, or several."""
    plugins = fitting_plugins([path], declared_readers())
    if len(plugins) != 1:
        return None
    tables = {name: Path(at) for name, at in plugins[0].tables.items()}
    return ReaderChoice(plugins[0].reader, {}, tables)


def complete(answers: Answers, folder: Path) -> tuple[Answers, list[str]]:
    """Find the files that the user named, and fill in what fits them; also return what was found.

    Raise ConfigError with what lies there when no file matches, and where several readers read the files.
    """
    if answers.workload:
        find_init_config(answers.workload)
    answers, suggestion = find_files(answers, folder)
    lines = [f"found: {suggestion.text}"] if suggestion.text else []
    plugins = plugins_of(answers) if not (answers.workload and answers.reader) else []
    if len({each.workload for each in plugins}) == 1:
        if len(plugins) > 1:
            names = ", ".join(each.reader for each in plugins)
            raise ConfigError(f"--reader: several read these files: {names}; name the one of their columns")
        answers = with_plugins(answers, plugins[0])
        lines.append(f"read by {answers.reader}; workload {answers.workload}")
    if not answers.workload:
        unread = why_unread(answers.sample, declared_readers(), answers.local_tables())
        raise ConfigError("\n".join([_NO_WORKLOAD.format(", ".join(init_configs())), *unread]))
    init_config = find_init_config(answers.workload)
    usual = init_config.synthetic.get("ranges", _RANGES) if answers.simulated else _RANGES
    ranges = {**usual, **suggestion.ranges, **answers.ranges}
    if "skip" in ranges:
        ranges = _with_skip(ranges, suggestion.ranges)
    return replace(answers, ranges=ranges), lines


def with_plugins(answers: Answers, plugins: Plugins) -> Answers:
    """Fill in workload, reader and side tables; what the user named of them wins."""
    return replace(
        answers,
        workload=answers.workload or plugins.workload,
        reader=plugins.reader,
        tables={**plugins.tables, **answers.tables},
    )


def _from_here(uri: str, campaign: Path) -> str:
    """Make a relative path of this directory absolute where the campaign's commands run in another one."""
    if not uri or "://" in uri or Path(uri).is_absolute() or campaign.resolve() == Path.cwd().resolve():
        return uri
    return os.path.normpath(Path.cwd() / uri)


def _with_skip(ranges: Tree, suggested: Mapping[str, Any]) -> Tree:
    """Keep of the missing ranges those that are among the ranges which the user chose."""
    skip = [] if any(ranges[name] != suggested[name] for name in ("first", "size")) else ranges["skip"]
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
        "simulator": answers.simulator or (init_config.simulator if answers.simulated else ""),
        "tables": dict(answers.tables),
    }
    tree: Tree = {}
    for part in (
        {"train": {"workload": init_config.workload}},
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


def check_named(tree: Tree, answers: Answers) -> list[str]:
    """Check a workload that the user named as ``module:Name``; return a line on each member that is not used.

    Raise ConfigError where it cannot be built, or does not fit the reader.
    """
    if ":" not in answers.workload:
        return []
    config = validate(tree)
    layout = open_reader(config.source.reader, config.options("reader")).layout
    tables: Iterable[str] = ()
    if config.simulates():
        tables = offered_tables(open_simulator(config.source.simulator, config.options("simulator")))
    return check_workload(config, layout, tables)


def own_sections(answers: Answers) -> list[str]:
    """Name the sections of options whose class no declaration chose: all of their keys are written."""
    named = {"reader": answers.reader, "simulator": answers.simulator, "model": answers.workload}
    readers = {reader for config in init_configs().values() for reader in config.readers}
    return [section for section, name in named.items() if ":" in name and name not in readers]


def fit_to_files(tree: Tree, answers: Answers) -> tuple[Tree, dict[str, str], list[str]]:
    """Choose sizes (threshold, batch, passes, …) from the files; also return why, by key, and lines to show.

    Nothing changes where no file is on this machine, or none can be read.
    """
    config = validate(tree)
    choice = ReaderChoice(config.source.reader, config.options("reader"), answers.local_tables())
    sizes = measure_sizes(choice, answers.sample, answers.count) if answers.sample else None
    if sizes is None:
        return tree, {}, []
    init_config = find_init_config(answers.workload)
    free = "outlier_above" not in init_config.always.get("split", {})
    reasons: dict[str, str] = {}
    for key, (value, why) in choose(config, sizes, init_config.per_step, threshold=free):
        chosen: Any = value
        for part in reversed(key.split(".")):
            chosen = {part: chosen}
        tree = _merged(tree, chosen)
        reasons[key] = why
    values = dict(flatten(tree))
    lines = [(f"{key}: {values[key]}", why) for key, why in reasons.items()]
    width = max((len(text) for text, _ in lines), default=0)
    return tree, reasons, [sizes.describe(), *(f"  {text:{width}}  {why}" for text, why in lines)]


def extras_of(reader: str, workload: str) -> dict[str, str]:
    """Name the extras that a reader and the evaluation of a workload need, each with the reason."""
    extras: dict[str, str] = {}
    for init_config in init_configs().values():
        if init_config.workload.partition(":")[0] == workload.partition(":")[0]:
            extras |= init_config.extras
        declared = init_config.readers.get(reader)
        if declared and declared.extra:
            extras[declared.extra] = f"for the reader {reader.rpartition(':')[2]}"
    return extras


def lacking_tables(tree: Tree) -> list[str]:
    """Name the side tables that reader or workload need and the configuration does not name."""
    config = validate(tree)
    if config.simulates():
        return []
    reader = open_reader(config.source.reader, config.options("reader"))
    workload = next(
        (each for each in init_configs().values() if each.workload == config.train.workload), None
    )
    return sorted({*reader.needs, *(workload.tables if workload else ())} - {*config.source.tables})


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


def render(tree: Tree, reasons: Mapping[str, str] = MappingProxyType({}), options: Iterable[str] = ()) -> str:
    """Write a configuration as YAML with a comment above every key; the comments are those of the models.

    reasons: why a key has its value, by its dotted name. options: sections of which all keys are written.
    """
    lines = [_HEADER]
    heads: list[list[str]] = []  # of the sections that a key is in, each written before its first key
    for entry in entries(validate(tree)):
        del heads[entry.depth :]
        indent, given = "  " * entry.depth, _given(tree, entry.dotted)
        if entry.section:
            blank = [] if entry.depth else [""]
            heads.append([*blank, *comment(entry.meaning, indent), f"{indent}{entry.name}:"])
        elif given or entry.dotted in SHOWN or entry.dotted.partition(".")[0] in options:
            for head in heads:
                lines += head
                head.clear()
            note = "; ".join(part for part in (entry.legal, entry.changes) if part)
            lines += comment(f"{entry.meaning}  [{note}]", indent)
            if entry.dotted in reasons:
                lines += comment(f"chosen for your files: {reasons[entry.dotted]}", indent)
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
PROFILES = {"slurm": "sbatch", "htcondor": "condor_submit"}  # of clusters, and the command that submits there
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


def workflow_files(profiles: Iterable[str] = ()) -> dict[Path, bytes]:
    """Read every file that the workflow needs in the folder of a campaign: path in there, and content.

    All are in the folder ``workflow``, but the profiles of clusters, PROFILE/config.yaml.
    """
    home = workflow_home()
    patterns = [line for line in _PATTERNS.read_text().splitlines() if not line.startswith("#")]
    paths = [path for pattern in patterns for path in sorted(home.glob(pattern))]
    paths.sort(key=lambda path: path == home / _MARK)  # written last: where it is, the workflow is whole
    files = {path.relative_to(home): path.read_bytes() for path in paths}
    clusters = {path: content for path, content in files.items() if path.parts[0] in PROFILES}
    placed = {
        path if path.parts[0] == "workflow" else "workflow" / path: content
        for path, content in files.items()
        if path not in clusters
    }
    return {path: clusters[path] for path in clusters if path.parts[0] in {*profiles}} | placed


def profiles_here(named: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the profiles of clusters that are named, else those whose command is on this machine.

    Raise ConfigError for one that is not known.
    """
    unknown = next((name for name in named if name not in PROFILES), None)
    if unknown is not None:
        raise ConfigError(f"--profile {unknown}: not known; write {' or '.join(PROFILES)}")
    return tuple(named) or tuple(name for name, command in PROFILES.items() if shutil.which(command))


def has_workflow(folder: Path) -> bool:
    """Return whether crpipe's workflow is in a folder."""
    return (folder / _MARK).exists()


def start_campaign(
    folder: Path,
    configuration: str,
    *,
    profiles: Iterable[str] = (),
    counts: bool = False,
    force: bool = False,
) -> list[str]:
    """Write a campaign's configuration, and the workflow where the folder has none or with ``force``.

    profiles: of clusters, written beside it where they are missing. counts: whether the files are to be
    counted before a plan. Return what was written and what to type next, as lines. Nothing is written where a
    file with other content is in the way; ``force`` keeps it as NAME.old.
    """
    whole = force or not has_workflow(folder)
    workflow = {
        path: content
        for path, content in workflow_files(profiles).items()
        if whole or (path.parts[0] in PROFILES and not _is_taken(folder / path))
    }
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
        *(["  crpipe count    # the files, for ranges.last: auto"] if counts else []),
        "  crpipe plan     # what will run",
        "  crpipe run      # run it; the same command continues after any stop",
    ]


def changed_files(folder: Path) -> list[Path]:
    """Name the rules of the workflow in a folder that are not those of this version, or are missing."""
    if folder.resolve() == workflow_home().resolve():  # a clone
        return []
    rules = {path: text for path, text in workflow_files().items() if path.parts[1] != "profiles"}
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
