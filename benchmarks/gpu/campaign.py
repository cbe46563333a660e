"""A tiny campaign that trains on the device, brought forward by crpipe's own verbs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.campaigns import FIRST, lay_out, opened
from crpipe.config.loading import load_config
from crpipe.inference.checkpoints import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.runner import Run
    from crpipe.config.loading import Config
    from crpipe.inference.checkpoints import LoadedModel

DIRECTION: dict[str, dict[str, Any]] = {
    "source": {
        "uri": "synthetic://",
        "reader": "crpipe.workloads.direction.reading.kaggle:SimulatedFiles",
        "simulator": "crpipe.workloads.direction.simulator.files:NeutrinoTelescope",
    },
    "ranges": {"first": 1, "last": 1, "step": 1},
    "split": {"threshold": 1_000_000, "validation_fraction": 0.2},
    "load": {"batch_events": 64},
    "model": {},
}


class DeviceCampaign:
    """A campaign of one range in a folder of its own, made again each time."""

    def __init__(self, run: Run, name: str, link: str = FIRST, **sections: Any) -> None:
        self.folder, self.link = run.folder / name, link
        shutil.rmtree(self.folder, ignore_errors=True)
        lay_out(self.folder, 1)
        path = self.folder / "crpipe.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | sections))

    def command(self, *words: str, settings: Sequence[str] = ()) -> list[str]:
        """Return a verb for this interpreter."""
        changes = [word for setting in settings for word in ("--set", setting)]
        return [sys.executable, "-m", "crpipe", *changes, *words]

    def verb(self, *words: str, settings: Sequence[str] = ()) -> str:
        """Run a verb; return what it printed; raise when it fails."""
        done = self.ask(self.command(*words, settings=settings))
        print(done.stdout)
        if done.returncode:
            raise RuntimeError(f"crpipe {' '.join(words)}: {final(done.stdout)}")
        return done.stdout

    def ask(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the campaign's folder; both of its streams are its output."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def until(self, last: str) -> None:
        """Run the verbs up to and with ``last``: tables, list, stage, split, train."""
        self.verb("tables")
        for verb in ("list", "stage", "split", "train"):
            self.verb(verb, self.link)
            if verb == last:
                return

    def config(self) -> Config:
        """Load its configuration; its paths begin in its folder, which becomes the current one."""
        os.chdir(self.folder)
        return load_config((Path("config/config.yaml"), Path("crpipe.yaml")), ())

    def trained(self, device: str) -> LoadedModel:
        """Load the trained checkpoint onto a device."""
        campaign = opened(self.config())
        receipt = campaign.config.paths().receipt(campaign.chain.names[0])
        return open_checkpoint(receipt, device, campaign.tables, campaign.table_keys)


def final(printed: str) -> str:
    """Return the last line that says something; an error of crpipe goes before what follows it."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("crpipe: ")]
    return (own or lines or ["no output"])[-1][:400]
