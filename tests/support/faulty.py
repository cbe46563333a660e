"""The toy workload, slow on request, and with a fault to meet; both are files beside the campaign."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from toy import Toy, ToyOptions

SLOW = Path("slow")  # while it stands, every batch takes as much longer as it says, in seconds
FAULT = Path("fault")  # holds one of FAULTS; taken away by the one process that meets it
BATCHES = 20  # that go well before the fault: a few steps, and a snapshot


FaultyOptions = ToyOptions  # found by its name


class Faulty(Toy):
    """Toy, until it meets its fault."""

    batches = 0

    def collate(self, events, index, seed):
        Faulty.batches += 1
        if SLOW.exists():
            time.sleep(float(SLOW.read_text()))
        if self.batches == BATCHES and FAULT.exists():
            name = FAULT.read_text().strip()
            FAULT.unlink()
            FAULTS[name]()
        return super().collate(events, index, seed)


def fail():
    raise RuntimeError("a fault of the workload")


def vanish():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:  # a signal ends a single sleep early
        time.sleep(1)


def grow():
    hoard = [np.ones(1 << 24) for _ in range(30)]  # 4 GB that are really touched
    time.sleep(60)
    hoard.clear()


FAULTS = {"fail": fail, "vanish": vanish, "hang": hang, "grow": grow}
