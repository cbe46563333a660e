"""The configuration told three ways from its one definition: commented YAML, JSON schema, table of keys."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from crpipe.config.loading import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]

_WIDTH = 110
_HEADER = """\
# The production campaign. Every key stands here with its default: meaning, then [legal values; what a
# change of it changes]. A key marked `data` changes the shards, `train` the checkpoints, the others neither.
# Put what you change into a small file of your own and name it with --configfile; it wins key by key.
# Written by `crpipe config default`.
"""
_TABLE_HEADER = """\
# Configuration keys

Every key of [config/config.yaml](../config/config.yaml), written by `crpipe config table`. The last column
says what a change of the key asks for: **data** a new `results` directory and a new `run`, **train** a new
`run`, the rest neither. Options of the workload stand under `model`; those below are the default workload's.

"""
_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "pattern": "matching",
}


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One line of the tree: a section, or a key with its default, its legal values and what it changes."""

    depth: int
    name: str
    dotted: str
    meaning: str
    section: bool
    value: Any = None
    legal: str = ""
    changes: str = ""


def entries() -> Iterator[KeyEntry]:
    """Walk the tree in its written order; the options of the default workload stand under ``model``."""
    yield from _walk(Config(), "", 0)


def default_yaml() -> str:
    """Write the default configuration as YAML with a comment above every key."""
    lines = [_HEADER]
    for entry in entries():
        indent = "  " * entry.depth
        if entry.section:
            lines += [
                *([] if entry.depth else [""]),
                *_comment(entry.meaning, indent),
                f"{indent}{entry.name}:",
            ]
            continue
        note = f"{entry.meaning}  [{'; '.join(part for part in (entry.legal, entry.changes) if part)}]"
        # Options of a workload are shown, not set: another workload would refuse them.
        quiet = "# " if entry.dotted.startswith("model.") else ""
        lines += [*_comment(note, indent), f"{indent}{quiet}{entry.name}: {_scalar(entry.value)}"]
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str) -> list[str]:
    prefix = f"{indent}# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_long_words=False
    )


def schema_json() -> str:
    """Write the JSON schema that editors and other tools can check a configuration with."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    return json.dumps(schema, indent=1) + "\n"


def key_table() -> str:
    """Write a Markdown table of all keys, one for each section."""
    parts = [_TABLE_HEADER, _table_head("General")]
    for entry in entries():
        if entry.section:
            parts.append(_table_head(f"{entry.dotted}: {entry.meaning}", 2 + entry.depth))
        else:
            cells = (
                f"`{entry.dotted}`",
                f"`{_scalar(entry.value)}`",
                entry.legal,
                entry.meaning,
                entry.changes,
            )
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def _table_head(title: str, level: int = 2) -> str:
    return (
        f"\n{'#' * level} {title}\n\n| key | default | legal | meaning | changes |\n|---|---|---|---|---|\n"
    )


def _walk(section: BaseModel, prefix: str, depth: int) -> Iterator[KeyEntry]:
    properties = type(section).model_json_schema()["properties"]
    fields = type(section).model_fields
    # Plain keys first: a key after a section would read as if it belonged to that section.
    for name in sorted(fields, key=lambda name: _section(section, name) is not None):
        meaning, dotted = fields[name].description or "", f"{prefix}{name}"
        inner = _section(section, name)
        if inner is None:
            shown = properties[name]
            value = getattr(section, name)
            yield KeyEntry(depth, name, dotted, meaning, False, value, legal_values(shown), _effect(shown))
        else:
            yield KeyEntry(depth, name, dotted, meaning, True)
            yield from _walk(inner, f"{dotted}.", depth + 1)


def _effect(schema: Schema) -> str:
    scope = str(schema["scope"])
    return "" if scope == "site" else scope


def _section(parent: BaseModel, name: str) -> BaseModel | None:
    if isinstance(parent, Config) and name == "model":
        return parent.options()
    value = getattr(parent, name)
    return value if isinstance(value, BaseModel) else None


def legal_values(schema: Schema) -> str:
    """Say in words which values a key's JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(legal_values(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "null":
        return "null"
    if schema["type"] == "array":
        inner = schema.get("items") or schema["prefixItems"][0]
        length = f"{schema['minItems']} values, each " if "minItems" in schema else "list, each "
        return length + legal_values(inner)
    bounds = [f"{word} {_number(schema[name])}" for name, word in _BOUNDS.items() if name in schema]
    return " ".join([_TYPES[schema["type"]], ", ".join(bounds)]).strip()


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _scalar(value: Any) -> str:
    """Write one default as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
