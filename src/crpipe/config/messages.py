"""What is wrong with a configuration, in words: one line for each wrong key or value."""

from __future__ import annotations

import difflib
import math
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pydantic

BRACES = 'put quotes around values with braces, as in uri: "/data/{range}/*.parquet"'
_EXPONENT = re.compile(r"[-+]?[0-9_]*\.?[0-9]+[eE][-+]?[0-9]+|[-+]?[0-9]+\.[eE][-+]?[0-9]+")


def explain(
    error: pydantic.ValidationError, model: type[BaseModel], prefix: str, origin: Mapping[str, str]
) -> str:
    """Describe every wrong key and value, one line each: the file, the key, what is wrong."""
    lines = []
    for item in error.errors():
        parts = [str(part) for part in item["loc"]]
        dotted = (prefix + ".".join(parts)).rstrip(".")  # a rule over several options has no part of its own
        where = next((origin[name] for name in _ancestors(dotted) if name in origin), "")
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key" + (_renamed(dotted) or _nearest(parts, model, prefix))
        elif item["type"] == "string_type" and isinstance(item["input"], dict):
            message = f"expected text, found a mapping; {BRACES}"
        elif not isinstance(item["input"], dict | BaseModel):
            message = f"{item['input']!r}: {message[:1].lower()}{message[1:]}{_as_number(item['input'])}"
        lines.append(": ".join(part for part in (where, dotted, message) if part))
    return "\n".join(lines)


def check_choice(what: str, value: Any, known: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` is one of the names; ``what`` says where it was given."""
    if value not in known:
        raise ConfigError(
            f"{what}: {value!r} is not known; known: {', '.join(known)}{did_you_mean(value, known)}"
        )


def did_you_mean(value: Any, known: Collection[str]) -> str:
    """Name the nearest of the known names, if one is near."""
    near = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.4)
    return f"; did you mean {near[0]}?" if near else ""


def _as_number(value: Any) -> str:
    """Say what to write in place of a number that YAML reads as text: 1.5e4 (YAML wants 1.5e+4)."""
    if not (isinstance(value, str) and _EXPONENT.fullmatch(value.strip())):
        return ""
    number = float(value)
    if not math.isfinite(number):
        return ""
    written = f"{number:.0f}" if number.is_integer() else repr(number)
    return f"; YAML reads {value.strip()} as text: write {written}"


def _renamed(dotted: str) -> str:
    """Say the new name of a key that an earlier version had."""
    text = files("crpipe.config").joinpath("renamed.yaml").read_text()
    new = yaml.safe_load(text).get(dotted)
    return f"; it is now called {new}" if new else ""


def _ancestors(dotted: str) -> Iterator[str]:
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _nearest(parts: list[str], model: type[BaseModel], prefix: str) -> str:
    parent: Any = model
    for part in parts[:-1]:
        parent = parent.model_fields[part].annotation
    near = difflib.get_close_matches(parts[-1], list(parent.model_fields), n=1, cutoff=0.4)
    return f"; did you mean {prefix}{'.'.join([*parts[:-1], near[0]])}?" if near else ""
