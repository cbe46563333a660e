"""Where the events of a range go: the names that ledgers, tables, manifests and reports share.

The group of an event decides its part; its size decides only whether it is stored with the bulk of that part
or with its outliers. So a held-out event is never trained on, however large it is.
"""

from __future__ import annotations

from typing import Literal

Part = Literal["train", "validation", "test"]
Role = Literal["train", "validation", "test", "outliers", "validation_outliers", "test_outliers"]

HELD_OUT: tuple[Part, ...] = ("validation", "test")  # never trained on
PARTS: tuple[Part, ...] = ("train", *HELD_OUT)  # also the names of the events up to the threshold
OUTLIERS_OF: dict[Part, Role] = {
    "train": "outliers",
    "validation": "validation_outliers",
    "test": "test_outliers",
}
LARGE_ROLES: tuple[Role, ...] = tuple(OUTLIERS_OF[part] for part in PARTS)  # events above the threshold
TRAINED_ROLES: tuple[Role, ...] = ("train", OUTLIERS_OF["train"])
ROLES: tuple[Role, ...] = (*PARTS, *LARGE_ROLES)  # of shards
DESTINATIONS = (*ROLES, "rejected")


def roles_of(part: Part) -> tuple[Role, Role]:
    """Name where the events of a part are: its bulk and its outliers."""
    return part, OUTLIERS_OF[part]
