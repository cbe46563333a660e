"""The options that every verb has, before the verb or after it: --config and --set."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from crpipe.cli import completion
from crpipe.cli.groups import arrange
from crpipe.cli.terminal import Settings, completing

if TYPE_CHECKING:
    from collections.abc import Iterator

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
