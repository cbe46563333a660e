"""YAML as people write it: files and values, read strictly, and in one line what is wrong with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
from yaml.reader import ReaderError

from crpipe.core.causes import OF_PROGRAMS, refuse_machine_error, retry_io
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

BRACES = 'put quotes around values with braces, as in uri: "/data/{range}/*.parquet"'
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PLACEHOLDER = re.compile(r"\{(?:range|number)\b[^{}]*\}")

_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_MERGE = "tag:yaml.org,2002:merge"  # of <<


class _StrictLoader(yaml.SafeLoader):
    """Refuses what YAML reads silently as something else: a key written twice, 0001000 (512), 1:30 (90).

    A key is what is written: YAML makes a number of 010, and true of on.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for name in (each for each, _ in node.value if isinstance(each, yaml.ScalarNode)):
            if name.value in lines:
                problem = f"{name.value} is written twice (first in line {lines[name.value]}); write it once"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=name.start_mark)
            lines[name.value] = name.start_mark.line + 1
            if name.tag != _MERGE:
                name.tag = self.DEFAULT_SCALAR_TAG
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: ARG002 - always
        """Construct at once what is inside: one value that holds itself is then refused."""
        return super().construct_object(node, deep=True)

    def construct_decimal(self, node: Any) -> int:
        text, value = node.value, int(self.construct_yaml_int(node))
        if ":" in text or (_OCTAL.fullmatch(text) and int(text) != value):
            problem = f"YAML reads {text} as {value}; write the number without 0 and :, or text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_decimal)

_FAULTS = (yaml.YAMLError, ValueError, RecursionError)  # a date may be none, brackets a thousand deep


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file of keys with values; raise ConfigError, with line and column, where it is none."""
    text = ""
    try:
        text = retry_io(lambda: path.read_text("utf-8"))
        tree = yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        refuse_machine_error(error, path, OF_PROGRAMS)
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name an existing file with --config"
        ) from error
    except _FAULTS as error:
        raise ConfigError(f"{path}: not valid YAML: {_fault(text, error)}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys with values, found {type(tree).__name__}")
    return tree


def read_value(text: str, given: str) -> Any:
    """Read a value of the command line; ``given``: what was typed, for the ConfigError."""
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except _FAULTS as error:
        raise ConfigError(f"{given}: {text!r} is not YAML ({_fault(text, error)})") from error


def _fault(text: str, error: Exception) -> str:
    """Describe in one line where a text is no YAML and why, and what to write."""
    if isinstance(error, UnicodeDecodeError):
        return _bad_character(error.object, error.start, "")
    if isinstance(error, ReaderError):
        return _bad_character(text.encode(), error.position, chr(error.character))
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    begin = getattr(error, "context_mark", None) or mark
    said = " ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
    near = text.splitlines()[begin.line : mark.line + 1]
    message = f"line {mark.line + 1}, column {mark.column + 1}: {said}"
    return f"{message}{_remedy(said, begin.line + 1, near)}"


def _bad_character(content: bytes, at: int, character: str) -> str:
    """Describe a file in another encoding, or a character that YAML refuses; at: of it."""
    line = "line " + str(content[:at].count(b"\n") + 1)
    if character and b"\0" not in content:
        return f"{line}: remove the character {character!r}"
    other = "UTF-16" if b"\0" in content else "LATIN1"
    return f"{line}: not in UTF-8; save it in UTF-8: iconv -f {other} -t UTF-8 FILE > NEW"


def _remedy(said: str, line: int, near: list[str]) -> str:
    """Write what helps where YAML says ``said`` of some lines that begin with ``line``."""
    if "'\\t'" in said:
        return "; indent with spaces"
    if "quoted scalar" in said and "end of stream" in said:
        return f"; the quotation mark in line {line} is not closed"
    if "alias" in said or "cannot start any token" in said:
        return "; put quotes around a value that begins with *, &, %, @ or `"
    if "constructor for the tag" in said:
        return "; --config takes several files, and text that begins with ! needs quotes"
    placed = any(_PLACEHOLDER.search(_QUOTED.sub("", each.partition(" #")[0])) for each in near)
    return f"; {BRACES}" if placed else ""
