"""Deletion of directories where a deleted file that is open stays under a hidden name, as on NFS and FUSE."""

import subprocess
import sys
import threading

import pytest

from crpipe.core import files
from hidden_names import hiding

pytestmark = pytest.mark.compiler

REMOVE = """
import sys
from pathlib import Path
from crpipe.core import files
files._HELD_OPEN_S = float(sys.argv[3])
try:
    held = getattr(files, sys.argv[1])(Path(sys.argv[2]))
    print(len(held or ()))
except files.DiskError as error:
    print("refused:", error)
"""


@pytest.fixture(params=["mounted", "preloaded"])
def place(request, tmp_path):
    with hiding(tmp_path, preloaded=request.param == "preloaded") as (folder, variables):
        tree = folder / "tree"
        (tree / "below").mkdir(parents=True)
        for name in ("a", "b", "below/c"):
            (tree / name).write_text(name)
        yield tree, variables


def removing(function, place, seconds):
    tree, variables = place
    words = [sys.executable, "-c", REMOVE, function, str(tree), str(seconds)]
    return subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True)


def test_a_deletion_waits_for_the_files_that_another_process_has_open(place):
    tree, _ = place
    with (tree / "below" / "c").open() as held:
        process = removing("remove_tree", place, 20)
        timer = threading.Timer(1.0, held.close)
        timer.start()
        output = process.communicate()[0]
        timer.join()
    assert output == "0\n"
    assert not tree.exists()


def test_all_but_what_is_held_is_deleted_and_named(place):
    tree, _ = place
    with (tree / "a").open():
        output = removing("clear_tree", place, 0.5).communicate()[0]
        assert output == "1\n"
        (left,) = tree.iterdir()
        assert files.is_held_open(left)
        output = removing("remove_tree", place, 0.5).communicate()[0]
        assert output.startswith(f"refused: {tree}: cannot be deleted while another process has .")
