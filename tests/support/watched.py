"""A workload that writes down which events it is trained on, a line for each: its group and multiplicity.

The environment variable WATCHED names the file. Reading the options does not import torch.
"""

import os
from pathlib import Path

from crpipe.workloads.muons.options import MuonGanOptions

NAMES = ("primary_major_id", "primary_minor_id")


class WatchedOptions(MuonGanOptions):
    """Those of MuonGan."""


def __getattr__(name):
    if name != "Watched":
        raise AttributeError(name)
    from crpipe.workloads.muons.models.gan import MuonGan

    class Watched(MuonGan):
        """MuonGan under observation."""

        def collate(self, events, index, seed):
            """Make a batch, and name its events."""
            columns = [events.columns[name][index].tolist() for name in NAMES]
            rows = zip(*columns, events.multiplicity[index].tolist(), strict=True)
            with Path(os.environ["WATCHED"]).open("a") as file:
                file.write("".join(f"{' '.join(map(str, row))}\n" for row in rows))
            return super().collate(events, index, seed)

    return globals().setdefault(name, Watched)
