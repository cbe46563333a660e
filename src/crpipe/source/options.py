"""How a source is asked: the plain values that every job of this folder is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Section ``source`` of the configuration, as far as it says how files are listed and copied.

    concurrency: files copied at once. attempts: tries for each file. deadline_s: longest time of one job.
    simulator: ``module:Name`` of what makes the files of ``synthetic://``, with its options and seed.
    """

    concurrency: int = 16
    attempts: int = 6
    deadline_s: float = 7200.0
    read_timeout_s: float = 60.0
    token_file: str = ""
    require_checksum: bool = False
    simulator: str = ""
    simulator_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
