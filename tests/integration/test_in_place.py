"""Raw files that change, vanish or cannot be read, through the real command: no ledger, and nothing lost."""

import errno
import os
import subprocess
import sys
from functools import cache

import pytest
import yaml

from failing import failing
from named import NAMED
from raw_files import NAME, write_hdf5, write_parquet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Changes a raw file, named by CHANGED, once its first events were read.
CHANGING = """
import os
from pathlib import Path
from crpipe.workloads.muons.reading.{module} import {base}

class Changing({base}):
    def rows(self, path, tables):
        for events in super().rows(path, tables):
            if path.name == os.environ.get("CHANGED"):
                exec(os.environ["CHANGE"], {{"os": os, "path": path.resolve()}})
            yield events
"""
TRUNCATED = "os.truncate(path, path.stat().st_size // 2)"
GONE = "path.unlink(missing_ok=True)"
REWRITTEN = """
status, data = path.stat(), bytearray(path.read_bytes())
data[50] ^= 255
with path.open("r+b") as file:
    file.write(data)
os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
"""
REPLACED = """
status, other = path.stat(), path.with_name("other.tmp")
other.write_bytes(bytes(status.st_size))
os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
other.rename(path)
"""
FORMATS = {"parquet": ("Bundles", write_parquet), "hdf5": ("BundlesHdf5", write_hdf5)}
COMMAND = """
from crpipe.__main__ import main
from crpipe.campaign import raw_proofs
{change}
main()
"""


class Here:
    """A campaign of one range with three raw files, and a command for it; held: they are kept in memory."""

    def __init__(self, folder, form="parquet", *, copied=False, held=True):
        base, write = FORMATS[form]
        self.folder, self.raw = folder, folder / "raw" / NAME
        self.raw.mkdir(parents=True)
        for number in range(3):
            write(self.file(number), [number, 5, 2, 30, 0] * 8, seed=number)
        (folder / "changing.py").write_text(CHANGING.format(module=form, base=base))
        (folder / "command.py").write_text(COMMAND.format(change="" if held else "raw_proofs._HELD = 0"))
        settings = {
            "source": {"uri": "raw/{range}/*", "reader": "changing:Changing", "copy_local": copied},
            "train": NAMED["train"],
            "ranges": {"last": 999},
            "split": {"outlier_above": 20, "validation_fraction": 0.3},
            "resources": {"split": {"cpus": 1}},
        }
        (folder / "crpipe.yaml").write_text(yaml.safe_dump(settings))

    def file(self, number):
        """Name a raw file: all of one size."""
        return self.raw / f"{number}.data"

    def run(self, verb, code=0, **variables):
        """Run a verb on the range; return what it prints."""
        done = subprocess.run(
            [sys.executable, "command.py", verb, NAME],
            env={**os.environ, "PYTHONPATH": str(self.folder), **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def staged(self):
        """List and stage the range."""
        self.run("list")
        self.run("stage")
        return self

    def products(self):
        """Split the range; return the bytes of its products."""
        results = self.folder / "results"
        self.run("split")
        self.run("check")
        folders = [results / name for name in ("shards", "outliers", "multiplicity", "ledgers")]
        files = [path for folder in folders for path in folder.rglob("[a-z0-9]*.*") if path.is_file()]
        listed = {path: path.read_bytes() for path in files if path.parent.name != ".finished"}
        return {str(path.relative_to(results)): content for path, content in listed.items()}

    def forget(self):
        """Delete the listing."""
        (self.folder / "results" / "manifests" / f"{NAME}.parquet").unlink()

    def has_ledger(self):
        """Return whether the range has one."""
        return (self.folder / "results" / "ledgers" / f"{NAME}.json").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Give the products of copied files of a format, of one campaign each."""

    @cache
    def of(form):
        return Here(tmp_path_factory.mktemp("copied"), form, copied=True).staged().products()

    return of


@pytest.mark.parametrize(
    ("form", "how", "held"),
    [
        *(("parquet", how, True) for how in (TRUNCATED, GONE, REWRITTEN, REPLACED)),
        ("parquet", REWRITTEN, False),  # as a large file, which is not kept in memory
        *(("hdf5", how, True) for how in (TRUNCATED, REPLACED)),
    ],
)
def test_a_file_that_changes_while_it_is_read_makes_no_ledger(tmp_path, whole, form, how, held):
    here = Here(tmp_path, form, held=held).staged()
    kept = here.file(1).read_bytes()
    said = here.run("split", code=66, CHANGED="1.data", CHANGE=how)
    assert str(here.file(1)) in said
    assert not here.has_ledger()
    here.file(1).write_bytes(kept)
    here.forget()
    assert here.staged().products() == whole(form)


@pytest.mark.compiler
@pytest.mark.parametrize(("form", "operation"), [("parquet", "read"), ("hdf5", "read"), ("parquet", "open")])
def test_a_read_error_is_the_machines_and_the_same_command_goes_on(tmp_path, whole, form, operation):
    here = Here(tmp_path, form).staged()
    variables = failing(tmp_path, operation, errno.EIO, f"{NAME}/1.data$", 0)
    said = here.run("split", code=74, **{name: variables[name] for name in ("LD_PRELOAD", "FAIL")})
    assert str(here.file(1)) in said
    assert not here.has_ledger()
    assert here.products() == whole(form)
