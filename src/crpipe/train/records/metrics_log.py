"""The metrics of a link: metrics.jsonl for programs, TensorBoard event files for people.

Both are cut back to the resumed step before a job continues, so that no step is written twice.
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary

from crpipe.core.causes import is_present
from crpipe.core.files import replacing, sync, writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class MetricsFile:
    """Rows of metrics, one JSON object per line, appended at each log interval."""

    def __init__(self, path: Path, resumed_step: int) -> None:
        self.path = path
        rows = [row for row in read_metrics(path) if row["step"] <= resumed_step]
        with replacing(path) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.last_step = max((row["step"] for row in rows), default=0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        with writing(self.path), self.path.open("a") as handle:
            handle.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all whole rows; a last line cut by a crash is left out."""
    rows = []
    if is_present(path):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


class EventFile:
    """One TensorBoard event file, cut back to the resumed step, then appended to."""

    def __init__(self, folder: Path, name: str, resumed_step: int) -> None:
        self.path = folder / f"events.out.tfevents.{name}"
        found = [(Event.FromString(record).step, record) for record in _records(self.path)]
        kept = [record for step, record in found if step <= resumed_step]
        self.last_step = max((step for step, _ in found if step <= resumed_step), default=0)
        self._begin(kept)

    def scalars(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Write named numbers of one step."""
        for tag, value in values.items():
            self._add(step, time_s, summary.scalar(tag, value))  # type: ignore[no-untyped-call]
        self._flush()

    def histogram(self, step: int, time_s: float, tag: str, values: NDArray[Any]) -> None:
        """Write the distribution of an array at one step; values that are not finite are left out."""
        finite = values[np.isfinite(values)]
        if not finite.size:
            return
        content = summary.histogram(tag, finite, bins=64)  # type: ignore[no-untyped-call]
        self._add(step, time_s, content)
        self._flush()

    def text(self, step: int, time_s: float, tag: str, markdown: str) -> None:
        """Write a text at one step; TensorBoard shows Markdown, tables included."""
        self._add(step, time_s, summary.text(tag, markdown))  # type: ignore[no-untyped-call]
        self._flush()

    def hyper_parameters(self, step: int, keys: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Write the configuration beside the final metrics: TensorBoard's table of runs."""
        plain = {
            name: value if isinstance(value, int | float | str) else str(value)
            for name, value in keys.items()
        }
        for content in summary.hparams(plain, dict(metrics)):  # type: ignore[no-untyped-call]
            self._add(step, time.time(), content)
        self._flush()

    def keep(self) -> bool:
        """Begin the file again where somebody deleted it, and flush it to the disk; return whether it was so.

        An open file takes what is written, whatever its name: the curves would end without a word.
        """
        found = is_present(self.path)
        if not found:
            self._writer.close()
            self._begin([])
        sync(self.path)
        return not found

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _begin(self, records: Sequence[bytes]) -> None:
        with replacing(self.path) as part, part.open("wb") as handle:
            writer = RecordWriter(handle)
            for record in records or [Event(file_version="brain.Event:2").SerializeToString()]:
                writer.write(record)
            writer.flush()
        self._writer = RecordWriter(self.path.open("ab"))

    def _add(self, step: int, time_s: float, content: Any) -> None:
        event = Event(step=step, wall_time=time_s, summary=content)
        with writing(self.path):
            self._writer.write(event.SerializeToString())

    def _flush(self) -> None:
        with writing(self.path):
            self._writer.flush()


def _records(path: Path) -> Iterator[bytes]:
    """Yield the whole records of an event file (length, checksum, bytes, checksum); leave out a cut one.

    A power failure may leave zeros at the end; no event is empty.
    """
    data = path.read_bytes() if is_present(path) else b""
    start = 0
    while start + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        body = data[start + 12 : start + 12 + length]
        if not length or start + 16 + length > len(data):
            return
        yield body
        start += 16 + length
