"""A small campaign whose verbs run in this process."""

import functools
import shlex
import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from crpipe.check.check import check, open_files
from crpipe.cli.app import app
from crpipe.config.loading import load_config
from crpipe.core.text import NullProgress
from runs import REPOSITORY, TINY
from unrendered import unrendered

FIRST, SECOND = "0000000-0000001", "0000002-0000003"
KEYS = (
    "ranges.last=3",
    "split.test_fraction=0.2",
    "split.histograms={depth_m: [0, 3000, 10]}",
    "train.passes_per_link=1",
    "train.outlier_epochs=1",
    "train.validate_every=2",
    "train.monitor=critic/loss",
)
read_config = functools.cache(load_config)  # a fifth of a second, and asked for with every path
PLOTTING = ("evaluate", "figures", "report")


@dataclass(frozen=True)
class Checked:
    """A campaign below ``folder``; ``keys``: further overrides of its configuration."""

    folder: Path
    keys: tuple[str, ...] = ()

    def copy(self, folder):
        subprocess.run(["cp", "-a", self.folder, folder], check=True)  # with second names of files
        return Checked(folder, self.keys)

    @property
    def files(self):
        return [REPOSITORY / "config" / "config.yaml", TINY]

    @property
    def overrides(self):
        places = (f"results={self.folder}/results", f"runs={self.folder}/runs")
        return (*KEYS, *places, *self.keys)

    @property
    def config(self):
        return read_config(tuple(self.files), self.overrides)

    @property
    def paths(self):
        return self.config.paths()

    def crpipe(self, *words):
        """Run a verb, without its figures; raise what it raises."""
        before = [word for file in self.files for word in ("--config", str(file))]
        before += [word for key in self.overrides for word in ("--set", key)]
        with unrendered() if words[0] in PLOTTING else nullcontext():
            done = CliRunner().invoke(app, [*before, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def split(self, *names):
        for name in names:
            for verb in ("list", "stage", "split"):
                self.crpipe(verb, name)

    def check(self, *names, processes=1):
        return check(open_files(self.config), names, NullProgress(), processes=processes)

    def type(self, remedy):
        """Run the commands of a remedy."""
        for command in remedy.split(" && "):
            words = shlex.split(command)
            if words[0] == "crpipe":
                self.crpipe(*words[1:])
            else:
                subprocess.run(words, check=True)

    def contents(self):
        """Read every file, but those about the attempt itself."""
        passing = ("journal.jsonl", "lease", "metrics.jsonl")
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
            and path.name not in passing
            and not {"tensorboard", "evaluation"} & {*path.parts}
        }


def finished(folder, ranges=(FIRST, SECOND), *keys):
    """Run a campaign of some ranges with a side table and best checkpoints to its end."""
    (folder / "notes.txt").write_text("a table that no reader needs\n")
    table = f"source.tables={{notes: 'file://{folder}/notes.txt'}}"
    campaign = Checked(folder / "campaign", (table, *keys))
    campaign.crpipe("tables")
    campaign.split(*ranges)
    campaign.crpipe("consolidate")
    for link in (*ranges, "outliers"):
        campaign.crpipe("train", link)
    # As the workflow does: what only the next step needs is gone.
    shutil.rmtree(campaign.paths.results / "staged")
    return campaign
