"""Column names, dtypes, units and legal values: the one place that knows what a bundle file holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """One column: numpy dtype, unit, and the closed interval of legal values."""

    name: str
    dtype: str
    unit: str
    low: float
    high: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A ragged table: one row per event, and ``multiplicity`` items (rows of ``items``) for each event.

    ``group`` names the event columns whose hash decides between training and validation, so that rows
    which share them never straddle the split.
    """

    item: str
    events: tuple[Field, ...]
    items: tuple[Field, ...]
    group: tuple[str, ...]


MULTIPLICITY = "multiplicity"
SOURCE_FILE = "source_file"
SOURCE_ROW = "source_row"
