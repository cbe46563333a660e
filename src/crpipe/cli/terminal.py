"""What all verbs share: the configuration that is named, and a terminal for their progress."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.config.files import DEFAULTS, config_files, own_files, way_to_campaign
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, CrpipeError
from crpipe.core.files import read_json_if_any
from crpipe.core.paths import BEST, CONSOLIDATED
from crpipe.core.ranges import PATTERN, Range, pick
from crpipe.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pydantic import BaseModel

    from crpipe.campaign.campaign import Campaign, LayoutFrom
    from crpipe.config.loading import Config, Options

# A verb pays for its own libraries only, and so does the completion of a word.
# ruff: noqa: PLC0415


_COLUMNS = 80  # of a terminal that does not say
_MADE = (Path("results/campaign.json"), Path("runs/default/campaign.json"))  # under the default names


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
    def config(cls, *, options: Options = True) -> Config:
        """Read and validate the configuration; without ``options``, no named package has to be there.

        "installed": the options of those that are there.

        One line on stderr says so where no file is named.
        """
        from crpipe.config.loading import load_config

        config = load_config(cls.config_files(), cls.overrides, options=options)
        if not own_files(cls.files) and (is_present(DEFAULTS) or not cls.overrides):
            Terminal().message(_unnamed())
        return config

    @classmethod
    def campaign(cls, *, options: Options = True) -> Config:
        """Read the configuration for a verb that looks at a campaign; raise ConfigError where none is."""
        if not cls.is_named() and not any(is_present(path) for path in _MADE):
            raise ConfigError(
                f"{Path.cwd()}: no campaign here: crpipe.yaml is missing; "
                f"{way_to_campaign(Path())}, or name its configuration with --config FILE; `crpipe init` "
                "makes a new one"
            )
        return cls.config(options=options)

    @classmethod
    def is_named(cls) -> bool:
        """Return whether a person, or the directory, names a configuration."""
        return bool(own_files(cls.files) or cls.overrides or is_present(DEFAULTS))

    @classmethod
    def is_given(cls) -> bool:
        """Return whether this call itself names a configuration."""
        return bool(cls.files or cls.overrides)

    @classmethod
    def config_files(cls) -> tuple[Path, ...]:
        """List the configuration files, weakest first."""
        return config_files(cls.files)


def opened(config: Config, layout: LayoutFrom = "reader") -> Campaign:
    """Open the campaign of a configuration."""
    from crpipe.campaign.campaign import Campaign

    return Campaign.open(config, layout)


def _unnamed() -> str:
    whose = (
        f"this is the campaign of {DEFAULTS}" if is_present(DEFAULTS) else "this is crpipe's default campaign"
    )
    return f"crpipe: no configuration is named: {whose}; name yours with --config FILE"


# The names that a shell completes: links, checkpoints, runs, keys; from small files alone.


# Each is a value, and what a shell shows beside it.
Choice = tuple[str, str]

_WIDTH = 60


def completing(names: Callable[[Config], Iterable[Choice]]) -> Callable[[str], list[Choice]]:
    """Return what completes a word for a shell; without a valid configuration nothing, and never an error."""

    def complete(incomplete: str) -> list[tuple[str, str]]:  # typer evaluates these names
        from crpipe.config.loading import load_config

        with suppress(CrpipeError, OSError):
            config = load_config(Settings.config_files(), Settings.overrides, options=False)
            return [choice for choice in names(config) if choice[0].startswith(incomplete)]
        return []

    return complete


def links(config: Config) -> Iterator[Choice]:
    """Yield the links of the chain."""
    for name in link_names(config):
        yield name, "trained" if is_present(config.paths().receipt(name)) else ""


def finished_links(config: Config) -> Iterator[Choice]:
    """Yield the links that are trained."""
    for name in link_names(config):
        if is_present(config.paths().receipt(name)):
            yield name, "trained"


def checkable(config: Config) -> Iterator[Choice]:
    """Yield the links, and the consolidated outliers."""
    yield from ((name, "") for name in (*link_names(config), CONSOLIDATED))


def checkpoints(config: Config) -> Iterator[Choice]:
    """Yield what --checkpoint takes; a shell completes paths itself where nothing of this begins so."""
    trained = [name for name, _ in finished_links(config)]
    best = [name for name in link_names(config) if is_present(config.paths().best_receipt(name))]
    if trained:
        yield "latest", f"link {trained[-1]}"
    if best:
        yield "best", f"of link {best[-1]}"
    for name in trained:
        yield name, "trained"
    for name in best:
        yield f"{name}{BEST.removesuffix('.json')}", "best of the link"


def runs(config: Config) -> Iterator[Choice]:
    """Yield the runs that have begun."""
    for path in sorted(config.paths().runs.glob("*/campaign.json")):
        yield path.parent.name, ""


def keys(config: Config) -> Iterator[Choice]:
    """Yield every key of the configuration with its meaning, options of reader and workload included."""
    from crpipe.config.loading import NAMED

    yield from _keys(type(config), "")
    for section in NAMED:
        # Only those of crpipe itself: a package of the user's may take seconds to import.
        shipped = config.plugin(section).startswith("crpipe.")
        model = config.options_model(section) if shipped else None
        yield from () if model is None else _keys(model, f"{section}.")


def _keys(section: type[BaseModel], prefix: str) -> Iterator[Choice]:
    from crpipe.config.keys import Section

    for name, info in section.model_fields.items():
        if info.exclude:
            continue  # frozen
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            # On one line, whatever the width of the terminal: fish takes each line for a word.
            yield f"{prefix}{name}=", textwrap.shorten(info.description or "", _WIDTH, placeholder=" …")


def link_names(config: Config) -> tuple[str, ...]:
    """Name the links of the chain, as far as small files tell."""
    layout = read_json_if_any(config.paths().layout())
    return config.chain(has_outliers=not (isinstance(layout, dict) and layout.get("fixed"))).names


RangeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RANGE",
        help="for example 0042000-0042999; its beginning; or its number from 0",
    ),
]
LinkArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK",
        help="for example 0042000-0042999; 0042000-0042999.2 in the second round; outliers; its beginning; "
        "or its number from 0",
        autocompletion=completing(links),
    ),
]
_CHECKPOINT = (
    "best, latest, a link (in full, its beginning, or its number from 0), LINK.best, or the path of a "
    "checkpoint or receipt"
)
CheckpointOption = Annotated[str, typer.Option(help=_CHECKPOINT, autocompletion=completing(checkpoints))]
ByOption = Annotated[
    str,
    typer.Option(
        metavar="METRIC",
        help="number that ranks the runs: a metric of the evaluation, or a loss of the validation",
    ),
]
FigureOption = Annotated[
    Path | None,
    typer.Option(readable=False, help="also plot their losses over each other: SVG, PNG, PDF, CSV"),
]
