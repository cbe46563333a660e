"""A mapping checked by its model: true and false are no numbers; in words, what is wrong with it.

One line for each wrong key or value: the file, the key, what is wrong, the nearest legal name.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any, get_args

import pydantic
from pydantic import BaseModel

from crpipe.config.plugins import CALLED_NOW, renamed
from crpipe.config.yaml_text import BRACES
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PLAIN_NAME = "letters, digits, . _ -"
_EXPONENT = re.compile(r"[-+]?[0-9_]*\.?[0-9]+[eE][-+]?[0-9]+|[-+]?[0-9]+\.[eE][-+]?[0-9]+")


_BRANCH = re.compile(r"bool|int|float|str|literal\[.*\]")  # pydantic's names for what a value may be


def checked(tree: Mapping[str, Any], model: type[BaseModel], prefix: str, origin: Mapping[str, str]) -> Any:
    """Validate a mapping by its model; raise ConfigError with one line per wrong key or value."""
    flags = [_place(name, origin) + "true and false are no numbers" for name in _flags(tree, model, prefix)]
    if flags:
        raise ConfigError("\n".join(flags))
    try:
        return model.model_validate(tree)
    except pydantic.ValidationError as error:
        raise ConfigError(explain(error, model, prefix, origin)) from error


def _flags(tree: Mapping[str, Any], model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Name the keys that have true or false for a number, of which pydantic makes 1 and 0."""
    for name, info in model.model_fields.items():
        kind, value = info.annotation, tree.get(name)
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _flags(value, kind, f"{prefix}{name}.")
        elif _holds_flag(value) and _takes(kind, (int, float)) and not _takes(kind, (bool,)):
            yield f"{prefix}{name}"


def _holds_flag(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, bool) or any(map(_holds_flag, inner))


def _takes(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether one of ``kinds`` is a part of an annotation, such as tuple[str | int, ...]."""
    return annotation in kinds or any(_takes(each, kinds) for each in get_args(annotation))


def explain(
    error: pydantic.ValidationError, model: type[BaseModel], prefix: str, origin: Mapping[str, str]
) -> str:
    """Describe every wrong key and value, one line each: the file, the key, what is wrong."""
    lines: dict[str, list[str]] = {}
    for item in error.errors():
        parts = [str(part) for part in item["loc"]]
        if len(parts) > 1 and _BRANCH.fullmatch(parts[-1]):
            parts.pop()
        dotted = (prefix + ".".join(parts)).rstrip(".")  # a rule over several options has no part of its own
        if item["type"] == "extra_forbidden":
            message = "unknown key" + (renamed(dotted) or _nearest(parts, model, prefix))
        else:
            message = _describe(item["input"], item["type"], item["msg"], dotted)
        said = lines.setdefault(dotted, [])
        if message not in said:
            said.append(message.removeprefix(f"{item['input']!r}: ") if said else message)
    return "\n".join(_place(dotted, origin) + "; or ".join(said) for dotted, said in lines.items())


def _place(dotted: str, origin: Mapping[str, str]) -> str:
    """Name the file and the key, as the beginning of a line."""
    file = next((origin[name] for name in _ancestors(dotted) if name in origin), "")
    return "".join(f"{part}: " for part in (file, dotted) if part)


def _describe(value: Any, kind: str, message: str, dotted: str) -> str:
    """Describe what is wrong with a value; kind, message: what pydantic says."""
    message = message.removeprefix("Value error, ")
    if value is None:
        return "no value is written; write one, or remove the key"
    if kind == "model_type":
        message = "this is a section of keys" + renamed(dotted)
    elif kind == "string_pattern_mismatch":
        message = f"legal are {PLAIN_NAME}, a letter or digit first"
    elif kind == "string_type" and isinstance(value, dict):
        return f"expected text, found a mapping; {BRACES}"
    elif kind == "string_type" and not isinstance(value, list):
        return f"YAML reads {value} as no text; put quotes around what is written"
    elif kind == "tuple_type":
        message = "expected a list" + ("" if isinstance(value, dict) else f"; write [{value}]")
    elif kind == "dict_type":
        message = "expected names with values"
    elif isinstance(value, dict | BaseModel):
        return message
    else:
        message = f"{message[:1].lower()}{message[1:]}{_as_number(value)}"
    return f"{value!r}: {message}"


def _as_number(value: Any) -> str:
    """Describe what to write in place of a number that YAML reads as text: 1.5e4 (YAML wants 1.5e+4)."""
    if not (isinstance(value, str) and _EXPONENT.fullmatch(value.strip())):
        return ""
    number = float(value)
    if not math.isfinite(number):
        return ""
    written = f"{number:.0f}" if number.is_integer() else repr(number)
    return f"; YAML reads {value.strip()} as text: write {written}"


def _ancestors(dotted: str) -> Iterator[str]:
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _nearest(parts: list[str], model: type[BaseModel], prefix: str) -> str:
    parent: Any = model
    for part in parts[:-1]:
        parent = parent.model_fields[part].annotation
    words = parts[-1].split(".")
    if len(words) > 1 and words[0] in parent.model_fields:
        return f"; in a file write {': {'.join(words)}: …{'}' * (len(words) - 1)}"
    section = ".".join(parts[:-1])
    names = {name: f"{section}.{name}".lstrip(".") for name in parent.model_fields}
    before = {name: new for name, new in CALLED_NOW.items() if name.rpartition(".")[0] == section}
    names = {old.rpartition(".")[2]: new for old, new in before.items()} | names
    near = difflib.get_close_matches(parts[-1], list(names), n=1, cutoff=0.4)
    return f"; did you mean {prefix}{names[near[0]]}?" if near else ""
