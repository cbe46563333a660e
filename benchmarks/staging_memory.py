"""Whether staging's memory depends on the size and the number of the files.

One command: ``python benchmarks/staging_memory.py``. A federation on loopback serves ranges of few large and
of many small files; each is staged by a process of its own, whose largest resident set is printed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from peak import run_verb

from crpipe.source.loopback.federation import LoopbackFederation

SETS = ((6, 50_000_000), (6, 250_000_000), (1000, 20_000), (8000, 20_000))
NAME = "0000000-0000999"


def main() -> None:
    """Serve, stage, print a line for each set."""
    with tempfile.TemporaryDirectory(prefix="crpipe-benchmark-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the origin runs as another user
        federation = LoopbackFederation(folder / "federation")
        for number, (count, size) in enumerate(SETS):
            target = federation.data / "icecube" / "wipac" / str(number) / NAME
            target.mkdir(parents=True)
            for index in range(count):
                (target / f"{index:05d}.parquet").write_bytes(bytes(size))
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
                print(f"{count:6d} x {size / 1e6:6g} MB{mib:8.0f} MiB{seconds:8.1f} s", flush=True)
        finally:
            federation.down()


if __name__ == "__main__":
    main()
