"""Where the events of a range go: the names that ledgers, tables, manifests and reports share."""

from __future__ import annotations

from typing import Literal

Part = Literal["train", "validation", "test"]

HELD_OUT: tuple[Part, ...] = ("validation", "test")  # never trained on
PARTS: tuple[Part, ...] = ("train", *HELD_OUT)  # of the events up to the threshold
DESTINATIONS = (*PARTS, "outliers", "rejected")
