"""The power fails inside a verb; what the disk then holds ends in the same bytes by the same command.

CRPIPE_CUTS=N tries N states of each verb (`make test-kills`), CRPIPE_CUT_SEED chooses them.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest

from crpipe.core import errors
from crpipe.core.paths import Paths
from crpipe.train.metrics_log import read_metrics
from crpipe.workflow.head import resume_deletions
from power_cut import WAYS, chosen, cuts, made
from runs import RANGES, Campaign

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(7200)]

COUNT = int(os.environ.get("CRPIPE_CUTS", "5"))
SEED = int(os.environ.get("CRPIPE_CUT_SEED", "1"))
FIRST = RANGES[0]
# The workflow runs a verb while one of its outputs is missing.
OUTPUTS = {
    "stage": (f"results/staged/{FIRST}.parquet",),
    "split": (
        f"results/shards/{FIRST}/manifest.json",
        f"results/outliers/{FIRST}/manifest.json",
        f"results/multiplicity/{FIRST}.parquet",
        f"results/multiplicity/{FIRST}.histogram.json",
        f"results/ledgers/{FIRST}.json",
    ),
    "train": (f"runs/tiny/ranges/{FIRST}.json",),
}
NAMED = {
    error.exit_code
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.CrpipeError)
}
# Of an attempt, and times in it.
NO_RESULT = ("journal.jsonl", "lease", "metrics.jsonl")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Campaigns before each verb."""
    found = {}
    campaign = Campaign.begin(tmp_path_factory.mktemp("prepared") / "campaign")
    assert campaign.crpipe("list", FIRST).returncode == 0
    for verb in OUTPUTS:
        found[verb] = campaign
        campaign = campaign.copy(campaign.folder.with_name(f"after-{verb}"))
        assert campaign.crpipe(verb, FIRST).returncode == 0
    return found


def results_of(campaign):
    return {name: data for name, data in campaign.contents().items() if not name.endswith(NO_RESULT)}


def steps_in(campaign):
    """Read which steps have metrics; a row that cannot be read is none."""
    return [row["step"] for row in read_metrics(campaign.run / "store" / FIRST / "metrics.jsonl")]


def type_it(campaign, verb):
    """Run a verb until it succeeds; in between type what its message says. Return what was typed."""
    typed = []
    for _ in range(3):
        done = campaign.crpipe(verb, FIRST)
        if done.returncode == 0:
            return typed
        assert done.returncode in NAMED, done.stderr
        assert "Traceback" not in done.stderr
        typed += re.findall(r"\brm (?:-r )?[^\s,;)`]+", done.stderr)
        assert typed, done.stderr
        subprocess.run(shlex.split(typed[-1]), cwd=campaign.folder, check=True)
    raise AssertionError(typed)


def go_on(campaign, last):
    """Run verbs as a new workflow does: those with a missing output. Return what had to be typed."""
    paths, typed = Paths(campaign.results, campaign.run.parent, campaign.run.name), []
    resume_deletions(paths, [FIRST])
    for verb, outputs in OUTPUTS.items():
        if not all((campaign.folder / name).exists() for name in outputs):
            typed += type_it(campaign, verb)
        if verb == last:
            return typed
    raise AssertionError(last)


@pytest.mark.parametrize(("verb", "last"), [("stage", "split"), ("split", "split"), ("train", "train")])
def test_after_a_power_cut_the_same_command_ends_in_the_same_bytes(prepared, tmp_path, verb, last):
    campaign = prepared[verb].copy(tmp_path / "campaign")

    def run(variables):
        done = Campaign(campaign.folder, variables).crpipe(verb, FIRST)
        assert done.returncode == 0, done.stderr

    found = cuts(campaign.folder, tmp_path, run, ignore=NO_RESULT)
    go_on(campaign, last)
    whole = results_of(campaign)
    # What has ended well is on the disk.
    for cut in found[-len(WAYS) :]:
        assert [name for name in OUTPUTS[verb] if cut.content(name) != whole[name]] == [], cut.way
    picked = chosen(found, COUNT, SEED)
    assert len({cut.way for cut in picked}) > 3
    problems, typed = [], []
    for cut in picked:
        state = Campaign(made(cut, tmp_path / "cut"))
        begun = results_of(state)
        torn = [name for name in OUTPUTS[verb] if name in begun and begun[name] != whole[name]]
        typed += go_on(state, last)
        after = results_of(state)
        other = sorted(name for name in {*whole, *after} if whole.get(name) != after.get(name))
        if verb == "train":
            other += ["metrics.jsonl"] * (steps_in(state) != steps_in(campaign))
        if torn or other:
            problems.append((cut.way, cut.moment, torn, other))
    sys.stderr.write(f"{verb}: {len(picked)} of {len(found)} states; typed: {typed}\n")
    assert problems == []


def test_the_layer_loses_what_was_not_flushed(tmp_path):
    """A file that is renamed before it is flushed; one that is flushed, and its name is not."""
    root = tmp_path / "disk"
    root.mkdir()
    script = (
        "import os, pathlib\n"
        "p = pathlib.Path('a.part'); p.write_text('late'); p.rename('a')\n"
        "h = os.open('b', os.O_WRONLY | os.O_CREAT); os.write(h, b'whole'); os.fsync(h); os.unlink('old')\n"
        "os.write(h, b'more'); os.rename('none', 'here')\n"
    )
    (root / "old").write_text("old")
    (root / "none").write_text("")

    def run(variables):
        subprocess.run([sys.executable, "-c", script], cwd=root, env={**os.environ, **variables}, check=True)

    found = cuts(root, tmp_path, run)
    last = {cut.way: {name: node.content for name, node in cut.tree.items()} for cut in found[-5:]}
    none = {"none": b""}
    assert last["nothing"] == none | {"old": b"old"}
    assert last["names"] == {"a": b"", "b": b"whole", "here": b""}
    assert last["zeros"] == {"a": bytes(4), "b": b"whole" + bytes(4), "here": b""}
