import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core import files
from crpipe.core.errors import DataError, DiskError
from failing import failing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "table"
    files.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError), files.atomic_write(path) as part:
        part.write_text("new \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


WRITE = (
    "import sys, time; from pathlib import Path; from crpipe.core.files import atomic_write\n"
    "with atomic_write(Path(sys.argv[1])) as part:\n"
    "    part.write_text(sys.argv[2]); print('half', flush=True); sys.stdin.readline()"
)


def writer(path, text):
    """Start a process that has written half of ``path``, and goes on at a line of its stdin."""
    command = [sys.executable, "-c", WRITE, str(path), text]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "half\n"
    return process


def test_two_writers_of_one_file_never_mix(tmp_path):
    path = tmp_path / "table"
    with writer(path, "one") as one, writer(path, "two") as two:
        one.communicate("go\n")
        assert path.read_text() == "one"
        two.communicate("go\n")
    assert (one.returncode, two.returncode) == (0, 0)
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    path = tmp_path / "deep" / "table"
    with writer(path, "of a live process") as live, writer(path, "of a killed process") as killed:
        killed.kill()
        killed.wait()
        assert len(list(path.parent.iterdir())) == 2
        files.write_text(path, "new")
        assert path.read_text() == "new"
        assert len(list(path.parent.iterdir())) == 2
        live.communicate("go\n")
    assert path.read_text() == "of a live process"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", [".table.part", ".table.other-host.12.0.part"])
def test_what_another_host_left_is_removed_after_a_day(tmp_path, name):
    path, left = tmp_path / "table", tmp_path / name
    left.write_text("half")
    files.write_text(path, "new")
    assert left.exists()
    os.utime(left, (time.time() - 100_000,) * 2)
    files.write_text(path, "new")
    assert list(tmp_path.iterdir()) == [path]


def test_each_new_directory_is_on_the_disk_as_an_entry_of_its_parent(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "sync", flushed.append)
    files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert flushed == [tmp_path, tmp_path / "a"]
    files.make_folder(tmp_path / "a" / "b")
    assert len(flushed) == 2


def test_another_os_error_passes_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError), files.disk_errors(tmp_path):
        (tmp_path / "missing").read_text()


def test_a_file_where_a_directory_is_needed_is_named(tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(DiskError, match="results"):
        files.write_text(tmp_path / "results" / "table", "")


@given(JSON)
def test_equal_json_has_equal_bytes_and_is_read_back(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "value.json"
    files.write_json(path, value)
    first = path.read_bytes()
    files.write_json(path, value)
    assert path.read_bytes() == first
    assert files.read_json(path) == value


def test_missing_and_damaged_json_say_what_to_do(tmp_path):
    path = tmp_path / "value.json"
    with pytest.raises(DataError, match="missing; run the step that makes it"):
        files.read_json(path)
    path.write_text('{"half": ')
    with pytest.raises(DataError, match=r"damaged .* delete it"):
        files.read_json(path)


def test_digest_ignores_the_order_of_keys_only():
    assert files.digest({"a": 1, "b": [1, 2]}) == files.digest({"b": [1, 2], "a": 1})
    assert files.digest({"a": [1, 2]}) != files.digest({"a": [2, 1]})
    assert files.digest({"a": 1}) != files.digest({"a": "1"})


def test_tree_bytes_sums_files_at_every_depth(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "one").write_bytes(b"1" * 10)
    (tmp_path / "a" / "b" / "two").write_bytes(b"2" * 200)
    assert files.tree_bytes(tmp_path) == 210
    assert files.tree_bytes(tmp_path / "missing") == 0


def test_free_bytes_of_a_directory_that_is_still_to_be_made(tmp_path):
    assert files.free_bytes(tmp_path / "not" / "yet") > 0


def test_a_tree_is_removed_and_a_missing_one_is_no_error(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    files.remove_tree(tmp_path / "a")
    files.remove_tree(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_named_with_the_reason():
    """As below a mount point that is not mounted: /proc takes no directories."""
    told = r"/proc/none/deep: cannot be made \(/proc/none: .*\); choose a directory"
    with pytest.raises(DiskError, match=told):
        files.make_folder(Path("/proc/none/deep"))


PUBLISH = """
import os, sys
from pathlib import Path
from crpipe.core import files
folder = Path(sys.argv[1])
files.write_text(folder / "deep" / "table", "new")
files.make_folder(folder / "deep" / "er")
assert (folder / "deep" / "table").read_text() == "new"
assert [path.name for path in folder.rglob("*.part")] == []
"""


@pytest.mark.parametrize(
    ("operation", "number", "nth", "place"),
    [
        ("fsync", errno.EINVAL, 0, "deep$"),  # a directory of a FUSE or SMB mount
        ("fsync", errno.ENOSYS, 0, "deep$"),
        ("renamed", errno.ENOENT, 1, "table"),  # done, answered twice
        ("renamed", errno.ESTALE, 1, "table"),
        ("rename", errno.EBUSY, 1, "table"),
        ("open", errno.ESTALE, 1, "table"),
        ("open", errno.ESTALE, 2, ".part$"),  # to flush it
        ("open", errno.EAGAIN, 1, "deep$"),
    ],
)
def test_what_passes_soon_or_means_nothing_is_no_error(tmp_path, operation, number, nth, place):
    (tmp_path / "x").mkdir()
    env = failing(tmp_path, operation, number, place, nth)
    command = [sys.executable, "-c", PUBLISH, str(tmp_path / "x")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operation", ["fsync", "rename", "write", "open"])
def test_what_fails_leaves_the_old_file_and_names_the_path(tmp_path, operation):
    path = tmp_path / "x" / "table"
    files.write_text(path, "old")
    code = "import sys; from pathlib import Path; from crpipe.core.files import write_text\n"
    code += "write_text(Path(sys.argv[1]), 'new' * 9999)"
    place = path if operation == "rename" else f"x/.{path.name}"
    env = failing(tmp_path, operation, errno.EIO, place)
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "DiskError" in last
    assert str(path.parent) in last
    assert path.read_text() == "old"
    assert [each.name for each in path.parent.iterdir()] == ["table"]


def test_a_directory_that_is_seen_late_is_made_all_the_same(tmp_path, monkeypatch):
    """It was taken for a file in its place when its server did not show it at once."""
    answers, really = iter([False, False]), Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda self: next(answers, None) is None and really(self))
    files.make_folder(tmp_path / "new")
    assert (tmp_path / "new").exists()
