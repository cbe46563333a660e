"""What `crpipe doctor` found: one line for each thing it looked at, with what to type where it is not ok."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["ok", "warn", "fail"]
_WIDTH = 15  # of the names
_INDENT = _WIDTH + 7
_LINE = 110


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. fix: what to type or to change; empty where nothing is to be done."""

    name: str
    verdict: Verdict
    text: str
    fix: str = ""


def as_table(findings: Sequence[Diagnosis]) -> str:
    """Write one line for each finding, and below it the fix."""
    lines = []
    for found in findings:
        lines += _wrapped(f"{found.verdict:4s}  {found.name:{_WIDTH}s} ", found.text)
        if found.fix:
            lines += [f"{'':{_INDENT}s}-> {found.fix}"]  # in one line: it is pasted
    return "\n".join(lines)


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _LINE,
        initial_indent=start,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def to_json(findings: Sequence[Diagnosis]) -> str:
    """Write the findings for a program: name, verdict, text and fix of each."""
    return json.dumps({"findings": [dataclasses.asdict(found) for found in findings]}, indent=1)


def failed_names(findings: Sequence[Diagnosis]) -> list[str]:
    """Name what will stop a campaign."""
    return [found.name for found in findings if found.verdict == "fail"]
