"""Read a small range for many epochs while the reader is killed at random; then look at its memory.

One command: ``python benchmarks/soak.py``. A reader process logs every batch and goes on from its log when
it is started again. Whatever the kills, the log must hold every event once per epoch, with the very bytes
that an undisturbed reader gets. A last reader, left alone, must not grow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from events import generate
from peers import write_shard

from crpipe.events.batch import Cursor
from crpipe.loading.loader import START, Loader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.events.batch import Events

BATCH = 500
GROUP = 2_000  # events of a row group: few, so that a small range has several windows
GROWTH = 1.05  # memory at the end beside that after the first quarter


def open_loader(folder: Path, epochs: int) -> Loader:
    """Open the range as every process of the soak reads it."""
    return Loader(folder, "train", batch_events=BATCH, seed=(3, 1), epochs=epochs)


def records(loader: Loader, start: Cursor) -> Iterator[dict[str, Any]]:
    """Describe each batch: cursor behind it, ids of its events, checksum of its bytes, memory in MiB."""
    process = psutil.Process()
    with contextlib.closing(loader.batches(start)) as stream:
        for events, cursor in stream:
            yield {
                "cursor": cursor,
                "ids": events.columns["primary_minor_id"].tolist(),
                "checksum": checksum(events),
                "memory": process.memory_info().rss / 2**20,
            }


def checksum(events: Events) -> int:
    """Hash all of a batch's bytes."""
    value = zlib.crc32(events.multiplicity.tobytes(), zlib.crc32(events.items.tobytes()))
    for column in events.columns.values():
        value = zlib.crc32(column.tobytes(), value)
    return value


def reached(log: Path) -> Cursor:
    """Read the cursor of the log's last whole line; a kill may have cut one short, which is then removed."""
    if not log.exists():
        return START
    data = log.read_bytes()
    end = data.rfind(b"\n") + 1
    os.truncate(log, end)
    last = data[:end].rpartition(b"\n")[0].rpartition(b"\n")[2]
    return Cursor(*json.loads(last)["cursor"]) if last else START


def read_on(folder: Path, log: Path, epochs: int) -> None:
    """Go on where the log ends: the process that is killed."""
    start = reached(log)
    with log.open("a") as file:
        for record in records(open_loader(folder, epochs), start):
            file.write(json.dumps(record) + "\n")
            file.flush()


def kill_until_finished(folder: Path, log: Path, epochs: int, seed: int) -> int:
    """Start the reader and kill it after a random time, again and again; return the number of kills."""
    moments = random.Random(seed)
    kills = 0
    while True:
        before = log.stat().st_size if log.exists() else 0
        command = [sys.executable, __file__, "--reader", str(folder), str(log), "--epochs", str(epochs)]
        with subprocess.Popen(command) as reader:
            while reader.poll() is None and (not log.exists() or log.stat().st_size == before):
                time.sleep(0.01)  # it starts up: a kill now would test nothing
            try:
                code = reader.wait(moments.uniform(0, 0.3))
            except subprocess.TimeoutExpired:
                reader.send_signal(signal.SIGKILL)
                kills += 1
                continue
        if code != 0:
            raise SystemExit(f"the reader ended with {code}")
        return kills


def compare(log: list[dict[str, Any]], calm: list[dict[str, Any]], events: int, epochs: int) -> None:
    """Stop with a message when the killed readers' log is not what one calm reader sees."""
    per_epoch = len(calm) // epochs
    for epoch in range(epochs):
        batches = log[epoch * per_epoch : (epoch + 1) * per_epoch]
        ids = sorted(number for batch in batches for number in batch["ids"])
        if ids != list(range(events)):
            raise SystemExit(f"epoch {epoch}: {len(ids)} events, {len(set(ids))} different, of {events}")
    if [(*row["cursor"], row["checksum"]) for row in log] != [
        (*row["cursor"], row["checksum"]) for row in calm
    ]:
        raise SystemExit("the log differs from an undisturbed reading")


def check_memory(calm: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the largest memory up to the first quarter and up to the end; stop when it grew."""
    early = max(row["memory"] for row in calm[: len(calm) // 4])
    late = max(row["memory"] for row in calm)
    if late > early * GROWTH:
        raise SystemExit(f"memory grew from {early:.0f} to {late:.0f} MiB")
    return early, late


def main() -> None:
    """Soak, compare, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--reader", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        read_on(*options.reader, options.epochs)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shard(folder, generate(options.events), GROUP)
        kills = kill_until_finished(folder, folder / "log.jsonl", options.epochs, options.seed)
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        # Without the ids, which the checksum covers: a list that grows would hide a reader that does not.
        calm = [row | {"ids": None} for row in records(open_loader(folder, options.epochs), START)]
        compare(lines, calm, options.events, options.epochs)
    early, late = check_memory(calm)
    print(f"{kills} kills over {options.epochs} epochs of {options.events} events: each event once an epoch,")
    print(f"all bytes as undisturbed; memory {early:.0f} MiB after a quarter, {late:.0f} MiB at most")


if __name__ == "__main__":
    main()
