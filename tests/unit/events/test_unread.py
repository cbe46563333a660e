"""Shards that cannot be read are not called damaged, and nobody is told to delete them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from failing import failing

READS = """
import json, os, sys
from pathlib import Path
from crpipe.core.errors import CrpipeError
from crpipe.events.shard_manifest import check_hashes, open_manifest, read_layout
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_streams import RowStream

folder, number = Path(sys.argv[1]), sys.argv[2]
found = []
for nth in range(1, 40):
    os.environ["FAIL"] = f"{sys.argv[3]}:{number}:{nth}:train-00000."
    try:
        layout = read_layout(folder)
        shards = Shards(folder, "train", layout)
        shards.multiplicities()
        shards.group(0, 0)
        stream = RowStream(shards.pairs[0].items, (0, 1), [layout.items[0].name], 0)
        stream.close()
        check_hashes(folder, open_manifest(folder, None).shards[0])
        found.append("")
        break
    except CrpipeError as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""


def outcomes(tmp_path, folder, number, operation):
    command = [sys.executable, "-c", READS, str(folder), str(number), operation]
    env = failing(tmp_path, "none", 0, "none") | {"PYTHONPATH": str(Path("tests/support").absolute())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("operation", ["read", "open"])
@pytest.mark.parametrize("number", [5, 12])  # EIO, ENOMEM
def test_each_failed_read_of_a_shard_is_an_error_of_the_machine(tmp_path, write_shards, number, operation):
    *failed, last = outcomes(tmp_path, write_shards(tmp_path, [[[2, 0, 3]]]), number, operation)
    assert len(failed) > 2
    assert last == ""
    for text in failed:
        assert text.startswith(("DiskError: ", "HostMemoryError: ")), text
        assert "train-00000." in text
        assert "delete" not in text


@pytest.mark.parametrize("operation", ["read", "open"])
def test_a_file_handle_that_the_server_forgot_is_opened_again(tmp_path, write_shards, operation):
    *failed, last = outcomes(tmp_path, write_shards(tmp_path, [[[2, 0, 3]]]), 116, operation)
    assert last == ""
    assert [text for text in failed if "RowStream" not in text and not text.startswith("DiskError")] == []
