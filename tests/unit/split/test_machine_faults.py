"""One failed read while a range is split stops the job; it never sets a file aside, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from failing import failing
from named import READERS
from raw_files import (
    NAME,
    campaign,
    product_bytes,
    raw_folder,
    split,
    write_hdf5,
    write_parquet,
    write_staged,
)

CASES = """
import json, os, sys
from crpipe.core.errors import CrpipeError
from raw_files import campaign, split

root, path, *numbers = sys.argv[1:]
found = []
for number in map(int, numbers):
    for nth in range(1, 60):
        config = campaign(root, *OVERRIDES)
        os.environ["FAIL"] = f"read:{number}:{nth}:{path}"
        try:
            split(config)
            kind, text = "", ""
        except CrpipeError as error:
            kind, text = type(error).__name__, str(error)
        os.environ["FAIL"] = "none:0:0:none"
        found.append((number, nth, kind, text))
        if not kind:
            print(json.dumps(found))
            sys.exit()
print(json.dumps(found))
"""


DIES = """
import os
from crpipe.workloads.muons.reading.parquet import Bundles as Parquet

class Dies(Parquet):
    def rows(self, path, tables):
        if path.name == "0001.parquet":
            os.abort()
        yield from super().rows(path, tables)

    def totals(self, path, tables):
        if TOTALS and path.name == "0001.parquet":
            os.abort()
        return super().totals(path, tables)
"""


@pytest.mark.slow
@pytest.mark.parametrize("totals", [True, False])
def test_a_file_that_kills_the_process_is_named_at_the_next_attempt(tmp_path, totals):
    (tmp_path / "dying.py").write_text(DIES.replace("TOTALS", str(totals)))
    config = campaign(tmp_path)
    for at in range(3):
        write_parquet(raw_folder(config) / f"000{at}.parquet", [1, 2], seed=at)
    write_staged(config)
    code = f"from raw_files import *\nsplit(campaign({str(tmp_path)!r}, 'source.reader=dying:Dies'))"
    code = f"if __name__ == '__main__':\n exec({code!r})"
    env = os.environ | {"PYTHONPATH": f"{Path('tests/support').absolute()}:{tmp_path}"}
    call = partial(subprocess.run, [sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert call(check=False).returncode == -signal.SIGABRT
    for _ in range(2):
        again = call(check=False)
        assert again.returncode == 1
        last = again.stderr.strip().splitlines()[-1]
        assert "PluginError" in last
        assert f"{NAME}/0001.parquet" in last
        assert "SIGABRT" in last


@pytest.mark.parametrize("form", ["parquet", "hdf5"])
@pytest.mark.parametrize("number", [5, 12])  # EIO, ENOMEM
def test_a_read_that_fails_sets_no_file_aside(tmp_path, form, number):
    overrides = ["source.on_bad_file=quarantine"]
    overrides += [] if form == "parquet" else [f"source.reader={READERS['bundles_hdf5']}"]
    write = write_parquet if form == "parquet" else write_hdf5
    for folder in ("good", "bad"):
        config = campaign(tmp_path / folder, *overrides)
        for at, counts in enumerate(([0, 3, 25, 1] * 20, [5] * 40)):
            write(raw_folder(config) / f"000{at}.{form}", counts, seed=at)
        write_staged(config)
    split(campaign(tmp_path / "good", *overrides))
    code = CASES.replace("OVERRIDES", repr(overrides))
    path = f"{NAME}/0001.{form}"
    command = [sys.executable, "-c", code, str(tmp_path / "bad"), path, str(number)]
    env = failing(tmp_path, "none", 0, "none") | {"PYTHONPATH": str(Path("tests/support").absolute())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 3
    for _, nth, kind, text in found[:-1]:
        assert kind in ("DiskError", "HostMemoryError"), (nth, text)
        assert f"0001.{form}" in text
    assert product_bytes(config) == product_bytes(campaign(tmp_path / "good", *overrides))
