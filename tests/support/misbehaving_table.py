"""The faults of misbehaving_table.yaml: what a server does wrong, and what crpipe makes of it.

Run as ``python tests/support/misbehaving_table.py`` to count them again in docs/reliability.md.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import yaml

import misbehaviours
from crpipe.core import errors
from misbehaving import DATA, Rule
from misbehaviours import FILES, ONE, OTHER, content

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
ROLES = {"data": DATA, "caches": ("near", "far")}
ENDINGS = {"one": ONE, "all": ".parquet", "discovery": "/pelican-configuration"}
COLUMNS = {  # of docs/reliability.md, by what a fault gives
    "same": "identical bytes",
    "less proof": "the same, with less proof",
    "aside": "one file set aside",
    "error": "named error",
}


@dataclass(frozen=True)
class Fault:
    """One row. gives: same, by server, by size, aside or error; words: of the error, or of the reason."""

    group: str
    what: str
    rules: list
    gives: str
    words: str
    error: type | None
    made: dict
    source: dict

    def script(self):
        """Make fresh rules, which count for themselves."""
        return [
            Rule(
                tuple(at) if isinstance(at, list) else ROLES.get(at, (at,)),
                tuple(methods.split()),
                ENDINGS.get(path, path),
                made(does),
                times,
            )
            for at, methods, path, does, times in self.rules
        ]


def made(does):
    """Make the fault that a row names, with its arguments: ``half``, ``[cut, 0.5]``."""
    name, *arguments = does if isinstance(does, list) else [does]
    fault = getattr(misbehaviours, name)
    return fault(*arguments) if arguments else fault


def fault_of(group, default, row):
    """Read a row."""
    given = row.get("rules", [row] if "does" in row else [])
    default = {"times": float("inf"), **default}
    rules = [[(default | rule)[key] for key in ("at", "methods", "path", "does", "times")] for rule in given]
    [gives] = {"gives", "aside", "error"} & row.keys()
    words = row[gives]
    settings = default.get("made", {}) | row.get("made", {})
    if "files" in settings:
        settings["files"] = {name: FILES[name] for name in settings["files"]}
    if "more_files" in settings:
        settings["files"] = FILES | {name: content(90) for name in settings.pop("more_files")}
    if "expected" in settings:
        settings["expected"] = {ONE: OTHER}
    if "escape" in settings:
        settings["escape"] = str
    return Fault(
        group,
        row["what"],
        rules,
        words if gives == "gives" else gives,
        words[-1] if gives == "error" else words,
        getattr(errors, words[0]) if gives == "error" else None,
        settings,
        row.get("source", {}),
    )


def read_faults():
    """Read the whole table."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return [
        fault_of(group["group"], group["default"], row) for group in table["groups"] for row in group["rows"]
    ]


FAULTS = read_faults()


def counts():
    """Count the outcomes of each group of faults, as Markdown."""
    lines = [f"| {' | '.join(['faults of', '', *COLUMNS.values()])} |", "|" + "---|" * (2 + len(COLUMNS))]
    for group in dict.fromkeys(fault.group for fault in FAULTS):
        given = [fault.gives for fault in FAULTS if fault.group == group]
        kinds = Counter("less proof" if gives.startswith("by ") else gives for gives in given)
        lines.append(f"| {' | '.join(map(str, [group, len(given), *(kinds[kind] for kind in COLUMNS)]))} |")
    return "\n".join(lines)


def section(page):
    """Return the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{counts()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(section(PAGE.read_text()))
