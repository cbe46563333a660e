"""What all verbs share: the configuration that is named, and a terminal for their progress."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import completion
from crpipe.config.files import DEFAULTS, config_files, own_files, way_to_campaign
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, CrpipeError
from crpipe.core.ranges import PATTERN, Range, pick
from crpipe.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crpipe.cli.completion import Choice
    from crpipe.config.loading import Config

# A verb pays for its own libraries only, and so does the completion of a word.
# ruff: noqa: PLC0415


_COLUMNS = 80  # of a terminal that does not say
_MADE = (Path("results/campaign.json"), Path("runs/default/campaign.json"))  # under the default names


def completing(names: Callable[[Config], Iterable[Choice]]) -> Callable[[str], list[Choice]]:
    """Return what completes a word for a shell; without a valid configuration nothing, and never an error."""

    def complete(incomplete: str) -> list[tuple[str, str]]:  # typer evaluates these names
        from crpipe.config.loading import load_config

        with suppress(CrpipeError, OSError):
            config = load_config(Settings.config_files(), Settings.overrides, options=False)
            return [choice for choice in names(config) if choice[0].startswith(incomplete)]
        return []

    return complete


RangeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RANGE",
        help="for example 0042000-0042999; its beginning; or its number from 0",
        autocompletion=completing(completion.ranges),
    ),
]
LinkArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK",
        help="for example 0042000-0042999; 0042000-0042999.2 in the second round; outliers; its beginning; "
        "or its number from 0",
        autocompletion=completing(completion.links),
    ),
]


def find_range(config: Config, text: str) -> str:
    """Return the range that ``text`` names: any in full, or one of the campaign as `pick` finds it."""
    if PATTERN.fullmatch(text):
        return str(Range.parse(text))
    return pick(text, tuple(map(str, config.all_ranges())), "range")


def show(text: str) -> None:
    """Print a report; control characters in names are written as escapes."""
    print(printable(text))


class Terminal:
    """Progress on a terminal: one line that is rewritten, with the time left; plain lines elsewhere."""

    def __init__(self) -> None:
        self.tty = sys.stderr.isatty()
        self._started: dict[str, tuple[float, float]] = {}
        self._told = 0.0

    def message(self, text: str) -> None:
        """Print one line."""
        self._clear()
        print(printable(text, keep=""), file=sys.stderr, flush=True)

    def update(self, label: str, done: float, total: float, note: str = "") -> None:
        """Print how far the work is, at most five times a second on a terminal, every 10 s elsewhere."""
        now = time.monotonic()
        share = done / total if total else 1.0
        # A resumed job starts somewhere in the middle: only what this process did gives its speed.
        started, first = self._started.setdefault(label, (now, share))
        if now - self._told < (0.2 if self.tty else 10.0) and done < total:
            return
        self._told = now
        left = f"{(now - started) * (1 - share) / (share - first):.0f} s left" if share > first else ""
        text = printable(f"{label} {share:4.0%}  {left}  {note}".rstrip(), keep="")
        if self.tty:
            print(f"\r\x1b[K{text}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        """Print one line of what was asked for."""
        show(text)

    def live(self, text: str) -> None:
        """Rewrite the last line of a terminal, cut to its width."""
        width = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
        print(f"\r\x1b[K{printable(text, keep='')[: width - 1]}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self.tty:
            print("\r\x1b[K", end="", file=sys.stderr)


class Settings:
    """The shared options --config and --set, kept until a handler asks for the configuration."""

    files: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()

    @classmethod
    def config(cls, *, options: bool = True) -> Config:
        """Read and validate the configuration; without ``options``, no named package has to be there.

        One line on stderr says so where no file is named.
        """
        from crpipe.config.loading import load_config

        config = load_config(cls.config_files(), cls.overrides, options=options)
        if not own_files(cls.files) and (is_present(DEFAULTS) or not cls.overrides):
            Terminal().message(_unnamed())
        return config

    @classmethod
    def campaign(cls, *, options: bool = True) -> Config:
        """Read the configuration for a verb that looks at a campaign; raise ConfigError where none is."""
        chosen = own_files(cls.files) or cls.overrides or is_present(DEFAULTS)
        if not chosen and not any(is_present(path) for path in _MADE):
            raise ConfigError(
                f"{Path.cwd()}: no campaign here: no crpipe.yaml, and nothing that a campaign made; "
                f"{way_to_campaign(Path())}, or name its configuration with --config FILE; `crpipe init` "
                "makes a new one"
            )
        return cls.config(options=options)

    @classmethod
    def config_files(cls) -> tuple[Path, ...]:
        """List the configuration files, weakest first."""
        return config_files(cls.files)


def _unnamed() -> str:
    whose = (
        f"this is the campaign of {DEFAULTS}" if is_present(DEFAULTS) else "this is crpipe's default campaign"
    )
    return f"crpipe: no configuration is named: {whose}; name yours with --config FILE"
