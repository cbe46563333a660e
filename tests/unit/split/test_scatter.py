"""Where the first half of a split sends events."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from crpipe.campaign.raw_files import STAGED, RawFile
from crpipe.campaign.readers import ReaderChoice
from crpipe.core import checksums
from crpipe.core.errors import DiskError
from crpipe.core.paths import DESTINATIONS, LARGE_ROLES
from crpipe.events.layout import SOURCE_FILE
from crpipe.split.parts import OUTLIER_OFFSET, REJECTED, TEST, TRAIN, VALIDATION, Parts
from crpipe.split.scatter import Rules, Task, scatter, table_path
from crpipe.split.spill import BlockTable, SpillReader
from plain_reader import HITS, make_hits, write_events

RULES = Rules(
    reader=ReaderChoice("plain_reader:Plain"),
    seed=1,
    threshold=10,
    parts=Parts(0.4, 0.2),
    buckets=(3, 2, 1),
)


def task_of(folder, *multiplicities, rules=RULES):
    files = []
    for number, multiplicity in enumerate(multiplicities):
        path = write_events(folder / f"{number}.npz", make_hits(multiplicity, seed=number))
        row = (path.name, "", path.stat().st_size, STAGED, "", checksums.of_file(path, "crc32c"))
        files.append(RawFile(number, *row, "crc32c", "copy-compare"))
    return Task(0, folder, folder, tuple(files), rules)


def destinations(folder):
    with pa.ipc.open_stream(table_path(folder, 0)) as stream:
        return stream.read_all()


def test_each_event_goes_to_the_bucket_of_its_destination(tmp_path):
    task = task_of(tmp_path, [1, 20, 0, 3] * 10, [2, 2, 11])
    done = scatter(task)
    table = destinations(tmp_path)
    sent = table["destination"].to_numpy()
    large = table["multiplicity"].to_numpy() > 10
    assert np.array_equal(large, sent >= OUTLIER_OFFSET)
    assert {*range(REJECTED)} == {*sent.tolist()}
    part = RULES.parts.of_groups([table[name].to_numpy() for name in HITS.group], RULES.seed)
    assert np.array_equal(sent, part + OUTLIER_OFFSET * large)  # the group alone decides the part
    totals = sum(report.events for report in done.files)
    assert totals.tolist() == [int((sent == code).sum()) for code in range(len(DESTINATIONS))]
    reader = SpillReader(tmp_path, HITS)
    blocks = BlockTable([done.blocks], task.rules.first_of_spans())
    segments = {TRAIN: blocks.segments(0, 3), VALIDATION: blocks.segments(3, 5), TEST: blocks.segments(5, 6)}
    for role in LARGE_ROLES:
        own = [outlier.segment for outlier in done.outliers if outlier.role == role]
        segments[DESTINATIONS.index(role)] = np.array(own)
    for code, each in segments.items():
        events = reader.read(each)
        assert len(events) == totals[code]
        assert len(events.items) == sum(report.items for report in done.files)[code]
    reader.close()


def test_a_file_is_held_out_whole(tmp_path):
    rules = replace(RULES, files={1: TEST, 2: VALIDATION})
    scatter(task_of(tmp_path, [1] * 100, [2, 3, 30], [0, 1], rules=rules))
    table = destinations(tmp_path)
    assert _sent(table) == {0: {TRAIN, VALIDATION, TEST}, 1: {TEST, TEST + OUTLIER_OFFSET}, 2: {VALIDATION}}


def _sent(table):
    found = {}
    for file, code in zip(table[SOURCE_FILE].to_pylist(), table["destination"].to_pylist(), strict=True):
        found.setdefault(file, set()).add(code)
    return found


def test_invalid_events_are_rejected_with_row_and_reason(tmp_path):
    task = task_of(tmp_path, [1, 2, 3])
    events = make_hits([1, 2, 3])
    events.items[1, 1] = -1
    path = write_events(tmp_path / "0.npz", events)
    file = RawFile(0, "0.npz", "", path.stat().st_size, STAGED, "", "", "crc32c", "")
    (report,) = scatter(Task(0, tmp_path, tmp_path, (file,), task.rules)).files
    assert report.rejected == [(1, "hits[0]: charge is -1.0, not within 0 to 1000000 pe", 2)]
    assert report.events[REJECTED] == 1


def test_nothing_is_kept_of_a_bad_file(tmp_path):
    task = task_of(tmp_path, [1, 20], [3], [5, 30])
    (tmp_path / "1.npz").write_bytes(b"no")
    files = [task.files[0], RawFile(1, "1.npz", "", 2, STAGED, "", "", "crc32c", ""), task.files[2]]
    done = scatter(Task(0, tmp_path, tmp_path, tuple(files), RULES))
    assert ["1.npz: no .npz file" in report.bad for report in done.files] == [False, True, False]
    assert {*destinations(tmp_path)[SOURCE_FILE].to_pylist()} == {0, 2}
    assert np.sum([report.items.sum() for report in done.files]) == 56


SCATTERED = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path[:0] = {paths}
from crpipe.campaign.readers import ReaderChoice
from crpipe.split.scatter import scatter
from crpipe.split.workers import reuse_freed_memory
from test_scatter import RULES, task_of

reuse_freed_memory()
reader = ReaderChoice("plain_reader:Repeated", {{"times": {times}}})
rules = replace(RULES, reader=reader, threshold=1 << 30)
done = scatter(task_of(Path({folder!r}), [50_000] * 20, rules=rules))
assert done.files[0].events.sum() == 20 * {times}
status = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)
"""


@pytest.mark.slow
def test_a_large_file_takes_no_more_memory_than_a_small_one(tmp_path):
    peak = {}
    for times in (20, 100):  # 160 and 800 MB
        folder = tmp_path / str(times)
        folder.mkdir()
        paths = [str(Path(__file__).parent), *sys.path]
        script = SCATTERED.format(paths=paths, times=times, folder=str(folder))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        peak[times] = float(done.stdout)
    assert peak[100] - peak[20] < 300


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["0000.00.events", "0000.00.items", "0000.01.items"])
def test_a_full_disk_is_named_with_its_place(tmp_path, name):
    """The system's own full device in the place of a temporary file."""
    task = replace(task_of(tmp_path, [1, 20, 0, 3] * 10), spills=tmp_path / "spills")
    task.spills.mkdir()
    (task.spills / name).symlink_to("/dev/full")
    with pytest.raises(DiskError, match=f"{task.spills}: cannot write: the disk is full"):
        scatter(task)
