"""How a verb is declared, what its help says, and the options that all verbs share."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from crpipe.cli.terminal import Settings, completing, keys
from crpipe.core.errors import AccessError, ConfigError, CrpipeError, LeaseError, MachineError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# As the help lists them; what is not in FRONT is listed by `crpipe steps`.
FRONT = ("Start", "Look at a campaign", "Use a model")
GROUPS = (*FRONT, "Steps that the workflow runs", "Tools")

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
    85: "a slice of a pack is over, and its STATE is written: the same command goes on",
    129: "the terminal was closed (SIGHUP)",
    130: "Ctrl-C",
    143: "SIGTERM",
}
# What any verb may end with.
ALWAYS = (0, 2, 130)


# What a verb raises that reads the source.
OF_THE_SOURCE = (SourceError, MachineError, LeaseError, AccessError)
RANGE = "0042000-0042999"  # of the examples
Function = TypeVar("Function", bound="Callable[..., None]")


@dataclass(frozen=True, slots=True)
class VerbEntry:
    """One verb in the help.

    reads: sections or keys of the configuration; `run`, `results` and `runs` name the folders of all verbs.
    exits: exit codes besides those of ALWAYS. page: file in docs/, with the heading.
    """

    group: str
    example: str
    reads: str
    exits: tuple[int, ...]
    page: str


VERBS: dict[str, VerbEntry] = {}


def declare(
    group: str,
    app: typer.Typer,
    name: str,
    example: str = "",
    *,
    reads: str = "",
    raises: Iterable[type[CrpipeError] | Signals] = (),
    page: str,
) -> Callable[[Function], Function]:
    """Make a function the verb ``name`` of ``app``, with what its help says below the options.

    example: what follows the name in a good call. reads: keys of the configuration, as the help names them.
    raises: the errors of crpipe, and the signals, that end it; its exit codes follow from them.
    """
    codes = {128 + each if isinstance(each, Signals) else each.exit_code for each in raises}
    VERBS[name] = VerbEntry(group, f"crpipe {name} {example}".rstrip(), reads, tuple(sorted(codes)), page)
    return app.command(name.rpartition(" ")[2], cls=Verb)


def each_verb(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every verb below a group of the command line, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from each_verb(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def arrange(root: Any) -> None:
    """Sort the verbs of the command line into their groups, and give each its entry."""
    for name, command in each_verb(root):
        command.entry = VERBS[name]
    names = sorted(VERBS, key=lambda name: GROUPS.index(VERBS[name].group))
    root.commands = {head: root.commands[head] for head in dict.fromkeys(map(_head, names))}


def listed(root: Any, groups: Iterable[str]) -> list[str]:
    """List the verbs of some groups, one a line below the name of their group."""
    verbs, lines = dict(each_verb(root)), []
    for group in groups:
        inside = [name for name, entry in VERBS.items() if entry.group == group]
        lines += [group, *(f"  {name:15s} {first_sentence(verbs[name].help)}" for name in inside)]
    return lines


def first_sentence(text: str) -> str:
    """Return the first sentence of a help."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


_WORDS = {int: "N", float: "NUMBER", Path: "PATH"}


def described(param: Any, ctx: Any) -> tuple[str, str]:
    """Return what a person types for an argument or option, and what it means."""
    about, kind = param.type_descriptor, param.type_descriptor.annotation
    word = param.metavar or ("|".join(map(str, about.choices or ())) if about.is_choice else "")
    word = word or _WORDS.get(kind) or param.opts[0].lstrip("-").upper().replace("-", "_")
    if param.param_type_name == "option":
        names = ", ".join(sorted(param.opts, key=len))
        word = names if param.is_flag else f"{names} {word}"
    default, notes = param.get_default(ctx, call=False), []
    if param.required:
        notes.append("required")
    elif default and not callable(default) and not isinstance(default, bool):
        notes.append(f"default: {default}")
    if param.min is not None:
        notes.append(f"at least {param.min:g}")
    return word, param.help + (f"  [{'; '.join(notes)}]" if notes else "")


class Verb(TyperCommand):
    """One verb; its help is plain text without types of Python; one line of it names the shared options."""

    entry: VerbEntry

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name in the usage, without the braces of typer."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: usage, what it does, arguments, options, and what its entry holds."""
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(" ".join((self.help or "").split()))
        params: list[Any] = self.params
        if rows := [described(param, ctx) for param in params if param.help and _is_own(param)]:
            formatter.write_paragraph()
            formatter.write_dl(rows)
        formatter.write_paragraph()
        for line in closing(self.entry):
            formatter.write_text(line)


def _is_own(param: Any) -> bool:
    return bool(param.rich_help_panel != PANEL)


def closing(entry: VerbEntry) -> list[str]:
    """Return what is below the options of a verb."""
    codes = ", ".join(map(str, sorted((*ALWAYS, *entry.exits))))
    reads = [f"Keys it reads: {entry.reads}"] if entry.reads else []
    return [
        f"Example: {entry.example}",
        *reads,
        f"Exit codes: {codes} (crpipe steps explains them); -c and -s: crpipe --help",
        f"More: docs/{entry.page}",
    ]


def _head(name: str) -> str:
    return name.partition(" ")[0]


# The options that every verb has, before the verb or after it: --config and --set.


PANEL = "Configuration (before the verb or after it)"
_USAGE = "Usage: crpipe VERB [OPTION …]    From raw simulation files to a trained model."
# No line is longer than 80 characters.
_OPTIONS = """\
--config, -c FILE    your keys; default: files in CRPIPE_CONFIG, or crpipe.yaml
--set, -s KEY=VALUE  one key, over the files; both before the verb or after it
--version, -V        also --install-completion, --show-completion: of your shell
crpipe VERB --help   explains a verb; crpipe steps: all others, and exit codes"""


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
            autocompletion=completing(keys),
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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb; raise ConfigError that names the nearest one."""
        word = args[0]
        if not (ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word)):
            from crpipe.config.loading import did_you_mean  # noqa: PLC0415 - no verb that is right needs it

            near = did_you_mean(word, self.commands)
            known = "crpipe --help and crpipe steps list all"
            raise ConfigError(f"{ctx.command_path} {word}: no such verb; {known}{near}")
        return super().resolve_command(ctx, args)


# Verbs of earlier versions, and what does the same.
SUCCESSORS = {
    "probe": "crpipe plan --probe, with the same options",
    "outliers": "crpipe plan, which shows the outliers and a recommended threshold",
    "shards verify": "crpipe check RANGE, which hashes every file",
    "shards export": "crpipe export --events RANGE --out FOLDER",
    "shards": "crpipe check RANGE and crpipe export --events RANGE",
    "restore": "crpipe sync --from PLACE",
    "version": "crpipe --version",
}


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

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - of the base class
        """Write the verbs for people, on one screen."""
        formatter.write("\n".join([_USAGE, "", *listed(self, FRONT), _OPTIONS, ""]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb; raise ConfigError with the successor of one of an earlier version."""
        for name in (" ".join(args[:2]), args[0]):
            if name in SUCCESSORS and not ctx.resilient_parsing:
                raise ConfigError(f"crpipe {name} is now {SUCCESSORS[name]}")
        return super().resolve_command(ctx, args)

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
    used = {name for param in command.params for name in param.opts}
    for param in shared:
        if param.opts[0] in used:
            continue
        free = copy.copy(param)
        free.opts = [name for name in param.opts if name not in used]
        command.params.append(free)
