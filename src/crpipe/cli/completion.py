"""The names that a shell completes: ranges, links, checkpoints, runs, keys; from small files alone."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.files import read_json_if_any
from crpipe.core.paths import BEST, CONSOLIDATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from crpipe.config.loading import Config

# Each is a value, and what a shell shows beside it.
Choice = tuple[str, str]

_WIDTH = 60

# A key press waits for this: no library is imported before it is needed.
# ruff: noqa: PLC0415


def ranges(config: Config) -> Iterator[Choice]:
    """Yield the ranges of the campaign."""
    for found in config.all_ranges():
        yield str(found), ""


def links(config: Config) -> Iterator[Choice]:
    """Yield the links of the chain."""
    for name in _links(config):
        yield name, "trained" if is_present(config.paths().receipt(name)) else ""


def finished_links(config: Config) -> Iterator[Choice]:
    """Yield the links that are trained."""
    for name in _links(config):
        if is_present(config.paths().receipt(name)):
            yield name, "trained"


def ranges_and_links(config: Config) -> Iterator[Choice]:
    """Yield ranges and links, each name once, and the consolidated outliers."""
    yield from dict.fromkeys((*ranges(config), *((name, "") for name in _links(config)), (CONSOLIDATED, "")))


def checkpoints(config: Config) -> Iterator[Choice]:
    """Yield what --checkpoint takes; a shell completes paths itself where nothing of this begins so."""
    trained = [name for name, _ in finished_links(config)]
    best = [name for name in _links(config) if is_present(config.paths().best_receipt(name))]
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
    from crpipe.config.plugins import options_class

    yield from _keys(type(config), "")
    for section, key_name in NAMED.items():
        group, _, leaf = key_name.partition(".")
        name = getattr(getattr(config, group), leaf)
        # Only those of crpipe itself: a package of the user's may take seconds to import.
        model = options_class(key_name, name) if name.startswith("crpipe.") else None
        yield from () if model is None else _keys(model, f"{section}.")


def _keys(section: type[BaseModel], prefix: str) -> Iterator[Choice]:
    from crpipe.config.sections import Section

    for name, info in section.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            # On one line, whatever the width of the terminal: fish takes each line for a word.
            yield f"{prefix}{name}=", textwrap.shorten(info.description or "", _WIDTH, placeholder=" …")


def _links(config: Config) -> tuple[str, ...]:
    layout = read_json_if_any(config.paths().layout())
    return config.chain(has_outliers=not (isinstance(layout, dict) and layout.get("fixed"))).names
