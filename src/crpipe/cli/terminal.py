"""What all verbs share: the configuration that is named, and a terminal for their progress."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from crpipe.config.files import DEFAULTS, config_files, own_files
from crpipe.config.loading import Config, load_config
from crpipe.core.progress import printable

RangeArgument = Annotated[str, typer.Argument(metavar="RANGE", help="for example 0042000-0042999")]
LinkArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK",
        help="for example 0042000-0042999; 0042000-0042999.2 in the second round; outliers",
    ),
]


def show(text: str) -> None:
    """Print a report; control characters in names are written as escapes."""
    print(printable(text))


class Terminal:
    """Progress on a terminal: one line that is rewritten, with the time left; plain lines elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._started: dict[str, tuple[float, float]] = {}
        self._told = 0.0

    def say(self, text: str) -> None:
        """Print one line."""
        self._clear()
        print(printable(text, keep=""), file=sys.stderr, flush=True)

    def advance(self, label: str, done: float, total: float, note: str = "") -> None:
        """Print how far the work is, at most five times a second on a terminal, every 10 s elsewhere."""
        now = time.monotonic()
        share = done / total if total else 1.0
        # A resumed job starts somewhere in the middle: only what this process did gives its speed.
        started, first = self._started.setdefault(label, (now, share))
        if now - self._told < (0.2 if self._tty else 10.0) and done < total:
            return
        self._told = now
        left = f"{(now - started) * (1 - share) / (share - first):.0f} s left" if share > first else ""
        text = printable(f"{label} {share:4.0%}  {left}  {note}".rstrip(), keep="")
        if self._tty:
            print(f"\r\x1b[K{text}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._tty:
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
        config = load_config(cls.config_files(), cls.overrides, options=options)
        if not own_files(cls.files) and (DEFAULTS.exists() or not cls.overrides):
            Terminal().say(_unnamed())
        return config

    @classmethod
    def config_files(cls) -> tuple[Path, ...]:
        """List the configuration files, weakest first."""
        return config_files(cls.files)


def _unnamed() -> str:
    whose = (
        f"this is the campaign of {DEFAULTS}" if DEFAULTS.exists() else "this is crpipe's default campaign"
    )
    return f"crpipe: no configuration is named: {whose}; name yours with --config FILE"
