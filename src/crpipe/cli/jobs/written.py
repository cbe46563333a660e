"""Events that are named on the command line, and what a verb wrote, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from crpipe.core.errors import ConfigError
from crpipe.core.files import size, write_text
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def events_file(given: Sequence[str], out: Path) -> Path:
    """Write events such as ``energy=1e6,angle=0.3`` into a CSV file beside ``out``; return its path.

    Raise ConfigError where one is not NAME=NUMBER, or where they have different columns.
    """
    rows = [_event(text) for text in given]
    names = list(rows[0])
    for text, row in zip(given, rows, strict=True):
        if set(row) != set(names):
            raise ConfigError(
                f"--event {text}: has the columns {', '.join(row)}, and the first one {', '.join(names)}; "
                "give the same columns for every event"
            )
    path = out.with_name(f"{out.name}.events.csv")
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    write_text(path, "\n".join([*lines, ""]))
    return path


def _event(text: str) -> dict[str, str]:
    row = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        try:
            float(value)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise ConfigError(
                f'--event {text}: {part!r} is not NAME=NUMBER; for example --event "a=1e6,b=0.3"'
            )
        row[name] = value
    return row


def written(out: Path, events: int) -> str:
    """Describe a table that was written: events, rows, columns and size."""
    about = [counted(events, "event")]
    if out.suffix == ".parquet":
        file = pq.read_metadata(out)
        if file.num_rows != events:
            about.append(counted(file.num_rows, "row"))
        about.append(f"columns {', '.join(pq.read_schema(out).names)}")
    elif out.suffix == ".csv":
        with out.open() as lines:
            about.append(f"columns {', '.join(lines.readline().strip().split(','))}")
    return f"{out}: {'; '.join([*about, size(out.stat().st_size)])}"
