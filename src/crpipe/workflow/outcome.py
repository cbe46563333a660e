"""What is printed when a workflow fails: which jobs and why, what waits for them, and how to continue."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.paths import OUTLIERS
from crpipe.core.progress import printable
from crpipe.report.status.failures import explain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crpipe.cli.jobs.campaign import Campaign
    from crpipe.core.errors import MachineError


def what_failed(
    campaign: Campaign,
    messages: str,
    ends: Mapping[Path, int],
    words: Sequence[str],
    *,
    training: bool,
    machine: MachineError | None = None,
) -> str:
    """Describe in a few lines why the workflow did not finish.

    messages: Snakemake's own log of this call; ends: where the journals ended when it began; words: its
    command line, to repeat. machine: what the workflow's own process cannot write any more; then it is the
    cause, and logs and journals may lack the rest.
    """
    lines = explain(campaign.paths, messages, ends) if machine is None else [str(machine)]
    names = [name for name in campaign.chain.names if name != OUTLIERS]
    waiting = [name for name in names if not is_present(campaign.paths.receipt(name))]
    if training and waiting:
        noun = "range" if campaign.chain.one_to_one else "link"
        lines.append(f"Training waits for {noun} {waiting[0]} ({len(waiting)} of {len(names)} still to do).")
    lines.append("Fix the cause; the same command continues where this one stopped:")
    lines.append(f"  {shlex.join(words)}")
    return printable("\n  ".join(["\ncrpipe: the workflow did not finish.", *lines]))


def what_stopped(words: Sequence[str]) -> str:
    """Say that the workflow ended because someone asked for it, and the command that continues."""
    return printable(f"\nStopped as asked; continue with: {shlex.join(words)}")
