"""A TensorBoard event file, cut back to the resumed step before a job continues.

Its messages are TensorBoard's own. Its writer, and torch's, take 0.2 s to import, in each job.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.hparams.api_pb2 import DataType, Experiment, Status
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData

from crpipe.core.causes import is_present
from crpipe.core.files import atomic_write, disk_errors, sync

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

# What a scalar is, by the end of its name; TensorBoard shows it beside the curve.
_DESCRIPTIONS = {
    "loss": "mean loss of the phase over the steps since the last row",
    "grad_norm_p50": "median norm of the gradient over the steps since the last row, before clipping",
    "grad_norm_p95": "95 % quantile of the norm of the gradient since the last row, before clipping",
    "grad_norm_max": "largest norm of the gradient since the last row, before clipping",
    "clipped": "share of the steps whose gradient was longer than train.gradient_clip_norm",
    "learning_rate": "learning rate, as a multiple of that which each phase has",
    "events_per_s": "events that training took in a second",
    "items_per_s": "items that training took in a second",
    "step_s": "seconds of one step",
    "wait_fraction": "share of the time in which training waited for batches",
    "host_peak_mib": "largest memory of this process so far, in MiB",
    "gpu_allocated_mib": "memory of tensors on the GPU, in MiB",
    "gpu_active_mib": "memory of tensors on the GPU that are in use or wait for it, in MiB",
    "gpu_reserved_mib": "memory that torch holds on the GPU, in MiB",
    "gpu_peak_mib": "largest memory of tensors on the GPU so far, in MiB",
    "epoch": "pass over the ranges of the link, from 0",
    "events": "events trained on so far, passes counted",
    "items": "items trained on so far, passes counted",
    "skipped": "steps left out so far, because a loss or gradient was not finite",
}


def describe_scalar(tag: str) -> str:
    """Describe a scalar by the end of its name; others are the workload's own."""
    last = "learning_rate" if tag.startswith("learning_rate/") else tag.rpartition("/")[2]
    held_out = tag.startswith("validation/")
    text = "mean loss of the phase" if held_out and last == "loss" else _DESCRIPTIONS.get(last, "")
    text = text or f"{last.replace('_', ' ')}, a number of the workload"
    return f"{text}; on held-out events" if held_out else text


class EventFile:
    """One TensorBoard event file, cut back to the resumed step, then appended to."""

    def __init__(self, folder: Path, name: str, resumed_step: int) -> None:
        self.path = folder / f"events.out.tfevents.{name}"
        self._described: set[str] = set()
        records = [(Event.FromString(record[12:-4]).step, record) for record in _records(self.path)]
        kept = [(step, record) for step, record in records if step <= resumed_step]
        self.last_step = max((step for step, _ in kept), default=0)
        self._begin([record for _, record in kept])

    def scalars(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Write named numbers of one step."""
        for tag, value in values.items():
            about = None
            if tag not in self._described:  # TensorBoard takes it from the first value
                self._described.add(tag)
                about = SummaryMetadata(summary_description=describe_scalar(tag))
            self._add(step, time_s, tag=tag, simple_value=value, metadata=about)
        self._flush()

    def histogram(self, step: int, time_s: float, tag: str, values: NDArray[Any]) -> None:
        """Write the distribution of an array at one step; values that are not finite are left out."""
        finite = values[np.isfinite(values)].astype(float)
        if not finite.size:
            return
        counts, limits = np.histogram(finite, bins=64)
        first, last = np.flatnonzero(counts)[[0, -1]]
        shape = HistogramProto(
            min=finite.min(),
            max=finite.max(),
            num=len(finite),
            sum=finite.sum(),
            sum_squares=finite @ finite,
            # Each bucket by its upper limit: the first one, which is empty, says where the second begins.
            bucket_limit=limits[first : last + 2].tolist(),
            bucket=[0, *counts[first : last + 1].tolist()],
        )
        self._add(step, time_s, tag=tag, histo=shape)
        self._flush()

    def text(self, step: int, time_s: float, tag: str, markdown: str) -> None:
        """Write a text at one step; TensorBoard shows Markdown, tables included."""
        tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        tensor.tensor_shape.dim.add(size=1)
        about = _plugin("text", TextPluginData(version=0))
        self._add(step, time_s, tag=f"{tag}/text_summary", tensor=tensor, metadata=about)
        self._flush()

    def hyper_parameters(self, step: int, keys: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Write the configuration beside the final metrics: TensorBoard's table of runs."""
        table, start = Experiment(), SessionStartInfo()
        for name, value in keys.items():
            if isinstance(value, int | float):
                start.hparams[name].number_value = value
                table.hparam_infos.add(name=name, type=DataType.DATA_TYPE_FLOAT64)
            else:
                start.hparams[name].string_value = str(value)
                table.hparam_infos.add(name=name, type=DataType.DATA_TYPE_STRING)
        for name in metrics:
            table.metric_infos.add().name.tag = name
        end = SessionEndInfo(status=Status.STATUS_SUCCESS)
        parts = {"experiment": table, "session_start_info": start, "session_end_info": end}
        for name, part in parts.items():
            about = _plugin("hparams", HParamsPluginData(version=0, **{name: part}))
            self._add(step, time.time(), tag=f"_hparams_/{name}", metadata=about)
        self._flush()

    def keep(self) -> bool:
        """Begin the file again where somebody deleted it, and flush it to the disk; return whether it was so.

        An open file takes what is written, whatever its name: the curves would end without a word.
        """
        deleted = not is_present(self.path)
        if deleted:
            self._file.close()
            self._begin([])
        sync(self.path)
        return deleted

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _begin(self, records: Sequence[bytes]) -> None:
        with atomic_write(self.path) as part, part.open("wb") as handle:
            handle.writelines(records or [_record(Event(file_version="brain.Event:2"))])
        self._file = self.path.open("ab")

    def _add(self, step: int, time_s: float, **value: Any) -> None:
        event = Event(step=step, wall_time=time_s, summary=Summary(value=[Summary.Value(**value)]))
        with disk_errors(self.path):
            self._file.write(_record(event))

    def _flush(self) -> None:
        with disk_errors(self.path):
            self._file.flush()


def _plugin(name: str, content: Any) -> SummaryMetadata:
    """Name which part of TensorBoard shows a value, and how."""
    data = SummaryMetadata.PluginData(plugin_name=name, content=content.SerializeToString())
    return SummaryMetadata(plugin_data=data)


def _record(event: Event) -> bytes:
    """Write the record of an event: length, checksum, bytes, checksum."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    """Return the CRC-32C of TFRecord files: rotated by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _records(path: Path) -> Iterator[bytes]:
    """Yield the whole records of an event file (length, checksum, bytes, checksum); leave out a cut one.

    A power failure may leave zeros at the end, from the middle of a record on.
    """
    data = path.read_bytes() if is_present(path) else b""
    start = 0
    while start + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        end = start + 16 + length
        if end > len(data) or _checksum(data[start + 12 : end - 4]) != data[end - 4 : end]:
            return
        yield data[start:end]
        start = end
