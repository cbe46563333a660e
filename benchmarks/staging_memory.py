"""Memory and time of listing and staging for few large and many small files, up to 20,000 of a range.

One command: ``python benchmarks/staging_memory.py``. A federation on loopback serves the ranges; each verb
runs in a process of its own, whose largest resident set and time are printed, its start included.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from events import generate
from peak import run_verb

from crpipe.workloads.muons.layout import nested_table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from loopback.federation import LoopbackFederation

SETS = ((6, 50_000_000), (6, 250_000_000), (1000, 20_000), (8000, 20_000), (20_000, 20_000))
NAME = "0000000-0000999"


def parquet_file(size: int) -> bytes:
    """Make a file of a few bundles and ``size`` bytes more: staging reads the footers of what it copied."""
    events, buffer = generate(10), io.BytesIO()
    table = nested_table(events.columns, events.multiplicity, events.items)
    table = table.append_column("more", pa.array([bytes(size), *[b""] * (len(events) - 1)]))
    pq.write_table(table, buffer, compression="none", use_dictionary=False)
    return buffer.getvalue()


def main() -> None:
    """Serve, stage, print a line for each set."""
    with tempfile.TemporaryDirectory(prefix="crpipe-benchmark-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the origin runs as another user
        federation = LoopbackFederation(folder / "federation")
        for number, (count, size) in enumerate(SETS):
            target = federation.data / "icecube" / "wipac" / str(number) / NAME
            target.mkdir(parents=True)
            whole = parquet_file(size)
            for index in range(count):
                (target / f"{index:05d}.parquet").write_bytes(whole)
        try:
            federation.up()
            (folder / "token").write_text(federation.token())
            for number, (count, size) in enumerate(SETS):
                settings = [
                    f"results=results-{number}",
                    f"source.uri={federation.uri(f'/icecube/wipac/{number}/{{range}}/*.parquet')}",
                    "source.token_file=token",
                    "source.reader=crpipe.workloads.muons.reading.parquet:Bundles",
                    "source.simulator=crpipe.workloads.muons.simulator.files:AirShowers",
                    "train.workload=crpipe.workloads.muons:MuonGan",
                    "ranges.last=999",
                ]
                for verb in ("list", "stage"):
                    mib, seconds = run_verb(
                        settings, [verb, NAME], folder, SSL_CERT_FILE=str(federation.certificate)
                    )
                    what = f"{verb:6}{count:6d} x {size / 1e6:6g} MB"
                    print(f"{what}{mib:8.0f} MiB{seconds:8.1f} s", flush=True)
        finally:
            federation.down()


if __name__ == "__main__":
    main()
