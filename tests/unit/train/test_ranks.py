"""A process of the training; what several of them do together is in tests/integration."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from crpipe.train.ranks import keep_freed_memory
keep_freed_memory()
def faults():
    tensors = [torch.ones(1 << 20) for _ in range(40)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = [faults() for _ in range(4)]
print(counts[-1] - counts[1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_memory_that_was_freed_is_kept():
    """Forty tensors of 4 MiB, four times: their 40,960 pages are cleared by the kernel once."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 4096
