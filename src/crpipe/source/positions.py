"""Number the files of a source by their position: recorded at the first listing, then fixed.

Out: positions.json (the last file number) and positions.parquet (the names, by position).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.raw_files import natural_key
from crpipe.core.causes import OF_FORM, is_present, refuse_machine_error, retry_io
from crpipe.core.errors import ConfigError, DataError, ListingError
from crpipe.core.files import atomic_write
from crpipe.core.lease import lease
from crpipe.core.records import NumberedFiles
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.core.text import Progress

SHOWN = 5  # names in an error
_WAIT_S = 60.0
_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False)])


def natural_order(names: Iterable[str]) -> list[str]:
    """Sort names so that file2 comes before file10; raise ListingError when one is there twice."""
    ordered = sorted(names, key=natural_key)
    twice = [name for name, count in Counter(ordered).items() if count > 1]
    if twice:
        raise ListingError(f"the source names {shown(twice)} twice; remove one")
    return ordered


@dataclass(frozen=True, slots=True)
class RecordedPositions:
    """The record of one campaign: ``record`` is positions.json, ``names`` positions.parquet."""

    record: Path
    names: Path

    @classmethod
    def of(cls, paths: Paths) -> Self:
        """Return the record of a campaign, whether it exists or not."""
        return cls(paths.positions(), paths.position_names())

    def exist(self) -> bool:
        """Return whether the files were listed before."""
        return is_present(self.record)

    def check_source(self, source: str) -> None:
        """Raise ConfigError when the record belongs to another source."""
        recorded = NumberedFiles.read_if_any(self.record)
        if recorded is not None and recorded.source != source:
            raise ConfigError(
                f"{self.record}: numbers the files of {recorded.source}, not of {source}; "
                f"restore source.uri, or {self._anew()}"
            )

    def record_or_check(
        self, names: Sequence[str], last: int, source: str, progress: Progress, *, grown: bool = False
    ) -> None:
        """Record the ordered names at the first listing; raise ListingError when they are others later.

        grown: number names that follow the last one, too. No number changes.
        """
        if grown or not self.exist():
            # The first jobs of a campaign start together: one of them writes, the others compare.
            with lease(self.record.parent / ".positions", wait_s=_WAIT_S, say=progress.message):
                self.check_source(source)
                if not self.exist() or self._follow(names):
                    self._write(names, last, source)
                    progress.message(
                        f"{source}: {counted(len(names), 'file')}; {self.record} records their numbers"
                    )
        self.check_source(source)
        self._refuse_changes(names, source)

    def _write(self, names: Sequence[str], last: int, source: str) -> None:
        with atomic_write(self.names) as part:
            pq.write_table(pa.table({"name": pa.array(names, pa.string())}, schema=_SCHEMA), part)
        NumberedFiles(files=len(names), last=last, source=source).write(self.record)

    def read(self) -> list[str]:
        """Read the names by position; raise DataError when the record is missing or damaged."""
        try:
            names: list[str] = retry_io(self._read, self.names)
        except (pa.ArrowException, OSError, KeyError) as error:
            refuse_machine_error(error, self.names, OF_FORM)
            raise DataError(
                f"{self.names}: damaged ({error}); delete it and {self.record}, then run the same command"
            ) from error
        return names

    def _read(self) -> list[str]:
        with pq.ParquetFile(self.names) as file:
            return file.read(_SCHEMA.names)["name"].to_pylist()  # type: ignore[no-any-return]

    def _anew(self) -> str:
        """Return how to number the files again: while no range is listed, no number is in use."""
        if any(self.record.parent.glob("manifests/*")):
            return "set `results` to a new directory"
        return f"delete {self.record} (no range is listed yet)"

    def _follow(self, names: Sequence[str]) -> bool:
        """Return whether these are the recorded names and others after them; those were named one by one."""
        old = self.read()
        return len(names) > NumberedFiles.read(self.record).files and list(names[: len(old)]) == old

    def _refuse_changes(self, names: Sequence[str], source: str) -> None:
        old, new = set(self.read()), set(names)
        lines = [f"  {name}: gone" for name in natural_order(old - new)]
        lines += [f"  {name}: new" for name in natural_order(new - old)]
        if lines:
            more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
            way = f"restore the old files, or {self._anew()} to number them again"
            if self._follow(names):
                way = (
                    "all follow the last one: crpipe count --grown numbers them, too; then raise ranges.last"
                )
            raise ListingError(
                "\n".join(
                    [
                        f"{source}: these are no longer the files that {self.record} numbers:",
                        *lines[:SHOWN],
                        *more,
                        way,
                    ]
                )
            )


def shown(names: Sequence[str]) -> str:
    """Join the first names for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
