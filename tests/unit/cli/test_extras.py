"""Verbs without the optional libraries that they need: one line with the command that installs them."""

import subprocess
import sys

import pytest

from named import READERS

READER = ["--set", f"source.reader={READERS['bundles_hdf5']}", "--set", "ranges.last=999"]
WITHOUT = """\
import sys
sys.modules[{library!r}] = None
from crpipe.cli.app import main
sys.argv = ["crpipe", *{words!r}]
main()
"""


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("h5py", "hdf5", [*READER, "inspect", "raw.h5"]),
        ("safetensors.torch", "export", [*READER, "export", "--checkpoint", "x.pt", "--out", "model"]),
    ],
)
def test_a_missing_library_ends_with_the_command_that_installs_it(tmp_path, library, extra, words):
    (tmp_path / "raw.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    script = WITHOUT.format(library=library, words=words)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"crpipe: {library.partition('.')[0]} is needed to ")
    assert line.endswith(f"install it with pip install 'crpipe[{extra}]'")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.h5"]
