"""What the simulators share: files named after the numbers of their range, and rows as classes of arrays."""

from __future__ import annotations

import abc
import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np

from crpipe.campaign.simulators import number_of, numbered_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from _typeshed import DataclassInstance

    from crpipe.core.ranges import Range


class SimulatorOptions(Protocol):
    """What the options of every simulator have."""

    @property
    def files_per_range(self) -> int:
        """Files in each range."""


Options = TypeVar("Options", bound=SimulatorOptions)
Rows = TypeVar("Rows", bound="DataclassInstance")
# Staging writes from many threads: side by side, files gain little time and take many times the memory.
_ONE_FILE = threading.Lock()


class NumberedSimulator(abc.ABC, Generic[Options]):
    """A simulator of one file for each number of a range; ``pattern`` makes its name of the number."""

    pattern: str

    def __init__(self, options: Options) -> None:
        self._options = options

    def files(self, name: Range) -> list[str]:
        """Name the files of a range; raise ConfigError when the range has too few numbers for them."""
        return numbered_files(name, self._options.files_per_range, self.pattern.format)

    def write(self, name: Range, file: str, seed: int, path: Path) -> None:
        """Simulate one file; equal arguments give equal bytes.

        Raise SourceError for a file of another range.
        """
        number = number_of(file, name, self.files(name))
        with _ONE_FILE:
            self.simulate(seed, number, path)

    @abc.abstractmethod
    def simulate(self, seed: int, number: int, path: Path) -> None:
        """Simulate the file of one number."""

    def tables(self, folder: Path) -> Mapping[str, Path]:  # noqa: ARG002 - of those who have none
        """Write the side tables; return their paths by name."""
        return {}


class Arrays:
    """A dataclass whose fields are arrays of one length."""

    __slots__ = ()

    def __len__(self) -> int:
        """Count the rows."""
        return len(getattr(self, fields(cast("DataclassInstance", self))[0].name))


def taken(rows: Rows, index: Any) -> Rows:
    """Choose rows of a dataclass of arrays, by a slice (views), a mask or numbers, which may repeat them."""
    return type(rows)(*(getattr(rows, field.name)[index] for field in fields(rows)))


def joined(parts: Sequence[Rows]) -> Rows:
    """Join dataclasses of arrays end to end."""
    columns = ([getattr(part, field.name) for part in parts] for field in fields(parts[0]))
    return type(parts[0])(*map(np.concatenate, columns))
