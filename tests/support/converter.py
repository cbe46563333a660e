"""A command for source.convert: what `write_raw` wrote becomes Parquet; each file says how that goes.

python converter.py --infile RAW --outfile PARQUET [--calls FILE] [--seconds S]
"""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def write_raw(path, table, how="well"):
    """Write a raw file that no reader reads; ``how``: what the command does with it."""
    import io  # the command itself needs none of these

    import pyarrow.parquet as pq

    if how == "other":
        table = table.rename_columns([*table.column_names[:-1], "tracks"])
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=20, compression="zstd")
    # The footer stays right, and a page of muons in the second row group does not.
    column = pq.read_metadata(buffer).row_group(1).column(1)
    page = column.data_page_offset + 60
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"how": how, "page": page}).encode()
    path.write_bytes(head + b"\n" + gzip.compress(buffer.getvalue(), mtime=0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--infile", type=Path)
    parser.add_argument("--outfile", type=Path)
    parser.add_argument("--calls", type=Path)
    parser.add_argument("--seconds", type=float, default=0)
    words = parser.parse_args()
    if words.calls:
        with words.calls.open("a") as calls:
            calls.write(f"{words.infile.name}\n")
    head, _, body = words.infile.read_bytes().partition(b"\n")
    about = json.loads(head)
    how, data = about["how"], bytearray(gzip.decompress(body))
    sys.stdout.write(f"reading {words.infile.name}\n")
    sys.stdout.flush()
    time.sleep(words.seconds)
    if how == "fail" or (how == "fail once" and words.calls.read_text().count(words.infile.name) == 1):
        sys.exit("no such frame: I3MCTree")
    if how == "hang":
        child = subprocess.Popen(["sleep", "600"])
        words.infile.with_name("pid").write_text(str(child.pid))
        child.wait()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "nothing":
        return
    if how == "half":
        del data[len(data) // 2 :]
    if how == "corrupt":
        data[about["page"] : about["page"] + 20] = b"\xff" * 20
    words.outfile.write_bytes(data)


if __name__ == "__main__":
    main()
