"""The rows of benchmarks/gpu.py: what a point was given, what it found, and the table of all."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROWS = "gpu.jsonl"
MACHINE = "machine"  # the point whose rows come first, above the table
NO_GPU = "not run: no NVIDIA GPU"


@dataclass(frozen=True)
class Given:
    """What a point was given: its name, where it works and on what, and other systems.

    seconds: what is left for this point. command: what repeats it.
    """

    point: str
    folder: Path
    device: str = "cuda"
    small: bool = False
    seconds: float = 600.0
    command: str = ""
    cr_muons: Path | None = None
    iceaggr: Path | None = None
    xec_ml_wl: Path | None = None
    started: float = field(default_factory=time.monotonic)

    def note(self, what: str, value: float | str, unit: str = "") -> None:
        """Append a row."""
        row = {
            "point": self.point,
            "what": what,
            "value": value,
            "unit": unit,
            "command": self.command,
            "seconds": round(time.monotonic() - self.started, 1),
        }
        print(f"{self.point}: {what}: {shown(value)} {unit}", flush=True)
        with (self.folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def left(self) -> float:
        """Give the seconds that are left."""
        return self.seconds - (time.monotonic() - self.started)

    def as_json(self) -> str:
        """Spell it for a process of its own, whose clock starts by itself."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in self._kept()}
        return json.dumps(values)

    def _kept(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in asdict(self).items() if name != "started"]

    @classmethod
    def of_json(cls, text: str) -> Given:
        """Read what ``as_json`` wrote."""
        values = json.loads(text)
        for name in ("folder", "cr_muons", "iceaggr", "xec_ml_wl"):
            values[name] = Path(values[name]) if values[name] else None
        return cls(**values)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of a folder; one that a kill cut short ends the list."""
    path, rows = folder / ROWS, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def forget(folder: Path, point: str) -> None:
    """Drop the rows of a point that is about to run again."""
    kept = [row for row in read_rows(folder) if row["point"] != point]
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def shown(value: float | str) -> str:
    """Show a number with four digits and separators; other values as they are."""
    if isinstance(value, str) or value != value:  # noqa: PLR0124 - a value that is not a number
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Show rows as Markdown: the machine, a table, and the command of each point below it.

    Files of several parts, one after the other, will do.
    """
    facts = [f"{row['what']} {shown(row['value'])}" for row in rows if row["point"] == MACHINE]
    lines = [", ".join(dict.fromkeys(facts)) or "machine unknown: no part has run", ""]
    lines += ["| point | what | value | unit | after s |", "|---|---|---|---|---|"]
    commands: dict[str, list[str]] = {}
    for row in sorted(rows, key=_order):
        if row["point"] == MACHINE:
            continue
        cells = (row["point"], row["what"], shown(row["value"]), row["unit"], f"{row['seconds']:.0f}")
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
        points = commands.setdefault(row["command"], [])
        if row["point"] not in points:
            points.append(row["point"])
    return [*lines, "", *(f"- {', '.join(points)}: `{command}`" for command, points in commands.items())]


def _order(row: dict[str, Any]) -> tuple[int, str]:
    """Sort by the number that a point's name begins with; rows of a point stay in their order."""
    number, _, name = row["point"].partition(" ")
    return (int(number) if number.isdigit() else 0, name)
