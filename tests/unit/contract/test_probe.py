"""The mistakes that people make with a workload, as the commands that they run first speak of them."""

import contextlib
import errno
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import yaml
from typer.testing import CliRunner

import small_lab
from crpipe.campaign.campaign import Campaign
from crpipe.cli.app import app
from crpipe.config.loading import validate
from crpipe.contract.cases import Case
from crpipe.contract.checks import CHECKS
from crpipe.contract.probe import check_first_job, outcomes
from crpipe.contract.trainings import tiny_campaign
from crpipe.core.errors import ConfigError, CrpipeError, DiskError
from crpipe.train.link import train_link
from told import Told

SOURCE = Path(small_lab.__file__).read_text()
# The line, the mistake, and the sentence; others are in test_mistakes.
MISTAKES = {
    "a sum": (
        "mean = (wrong * weight).sum() / weight.sum()",
        "mean = (wrong * weight).sum()",
        "expected a mean over the events, found a sum: ",
    ),
    "events changed in place": (
        "x, charge = part.items.T\n",
        "x, charge = part.items.T\n        charge += 1\n",
        "collate: expected its events and index unchanged, found other values after the call",
    ),
    "an optimizer that torch has not": (
        'OptimizerSpec("adam"',
        'OptimizerSpec("adamw"',
        r"OptimizerSpec: kind: 'adamw' is not known; known: .*; did you mean AdamW\?",
    ),
    "statistics of a batch in the network": (
        "nn.Linear(2, hidden), nn.SiLU()",
        "nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.SiLU()",
        "the loss of phase fit: expected of a batch on two ranks the gradients of one rank, in train",
    ),
    "item columns in another order": (
        '("x_m", "charge_pe")',
        '("charge_pe", "x_m")',
        "reads the item columns charge_pe, x_m by position, but the first ones of .* are x_m, charge_pe",
    ),
    "half of the network": (
        "lambda model: model.parameters()",
        'lambda model: model["each"].parameters()',
        "phases: expected every parameter in a phase, or frozen by the model, found whole.weight in none",
    ),
    "baseline misspelt": (
        "def baseline(",
        "def baselin(",
        r"HitEnergy.baselin: nothing calls it; did you mean baseline\?",
    ),
    "an option class of another name": (
        "class HitEnergyOptions(",
        "class EnergyOptions(",
        r"HitEnergy takes options, but .* has no class HitEnergyOptions",
    ),
    "a score of another name": (
        'return {"bias": float(',
        'return {"bia": float(',
        r"score: expected a finite bias, which `metrics` declares, found bia; did you mean bias\?",
    ),
    "a model that fails": (
        "hidden = self.options.hidden",
        "hidden = self.options.hiden",
        r"train.workload: .*:HitEnergy.model failed: AttributeError: .* no attribute 'hiden'",
    ),
    "parameters that are not there": (
        "lambda model: model.parameters()",
        'lambda model: model["wole"].parameters()',
        r"phase fit: its params failed: KeyError: 'wole'",
    ),
    "a size that fails": (
        "return events.multiplicity",
        "return events.multiplicities",
        r"HitEnergy.size failed on \d+ events.*: AttributeError: .* no attribute 'multiplicities'",
    ),
    "a loss that fails": (
        '- batch["energy"]).square()',
        '- batch["enrgy"]).square()',
        r"HitEnergy: the loss of phase fit failed: KeyError: 'enrgy'",
    ),
    "a figure that fails": (
        'return {"bias": float(',
        'self.new_figure()\n        return {"bias": float(',
        r"HitEnergy.score failed on \d+ events.*: AttributeError: .* no attribute .new_figure.",
    ),
}
DOUBTED = ("half of the network", "baseline misspelt", "statistics of a batch in the network")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Write the small package, changed, and its configuration: lab(name, right, wrong) -> the file's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "10000")

    def write(number, right="", wrong=""):
        assert right in SOURCE
        module = f"probed_{number}"
        (tmp_path / f"{module}.py").write_text(SOURCE.replace(right, wrong, 1) if right else SOURCE)
        tree = small_lab.tree(module, device="cpu", threads=1)
        (tmp_path / "crpipe.yaml").write_text(yaml.safe_dump(tree))
        return module

    return write


def probe(*words):
    """Run the command; return its output, and the sentence that ended it."""
    done = CliRunner().invoke(app, ["plan", "--probe", "--steps", "5", *words])
    assert done.exception is None or isinstance(done.exception, CrpipeError | SystemExit), done.exception
    return done.stdout, str(done.exception or "")


@pytest.mark.slow  # a second each
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_runs(name, lab):
    right, wrong, sentence = MISTAKES[name]
    lab([*MISTAKES].index(name), right, wrong)
    text, error = probe()
    assert re.search(sentence, error) or re.search(sentence, " ".join(text.split())), (text, error)
    assert "\n" not in error


def test_what_passes_what_is_not_there_and_how_fast_it_trains(lab):
    module = lab("right")
    text, error = probe()
    assert error == ""
    assert re.search(rf"workload {module}:HitEnergy: \d\d checks passed$", text, re.MULTILINE)
    assert "failed" not in text
    assert "  fit, fit_events: for a workload whose model holds a simple method" in text
    assert "two ranks have the gradients of one" in " ".join(text.split())
    optional = text.partition("optional, and not there:")[2].partition("one batch from")[0]
    assert "card, graphs: " in optional
    assert "baseline" not in optional
    assert "part of a step" in text
    assert not Path("results").exists()


def test_events_that_the_split_will_reject_are_no_mistake_of_the_reader(lab, tmp_path):
    energy = '"energy_gev": (10 ** rng.uniform(0, 3, count)).astype(np.float32)'
    lab("rejected", energy, f"{energy} * (np.arange(count, dtype=np.float32) - np.float32(8.5))")
    path = tmp_path / "crpipe.yaml"
    _, refused = probe()
    assert "expected energy_gev within 0 to 1e+06" in refused
    path.write_text(f"{path.read_text()}split: {{on_bad_event: reject}}\n")
    said, refused = probe()
    assert (refused, "one batch from files of the simulator: 20 events" in said) == ("", True), refused


def test_before_anything_was_trained_a_plan_measures_a_few_steps(lab, tmp_path):
    lab("rate")
    CliRunner().invoke(app, ["simulate", "0", "--out", "raw"], catch_exceptions=False)
    files = ["--set", f"source.uri={tmp_path}/raw/*"]
    done = CliRunner().invoke(app, [*files, "plan"], catch_exceptions=False)
    assert re.search(r"of training, at [\d,.]+ events/s, measured in 4 steps on this machine", done.stdout)
    assert not Path("results").exists()
    lab("rateless", "lambda model: model.parameters()", "lambda model: model.nothing()")
    done = CliRunner().invoke(app, [*files, "plan"], catch_exceptions=False)
    assert "no rate of training is measured yet" in done.stdout
    assert "no attribute" in done.stdout


def test_a_batch_is_of_files_that_the_campaign_takes(tmp_path):
    names = ["0000000-0000001/a.parquet", "0000002-0000003/.a.parquet", "0000002-0000003/b.parquet"]
    for path in map(tmp_path.joinpath, names):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    ranges = {"first": 0, "last": 3, "size": 2, "skip": ["0000000-0000001"]}
    tree = {"run": "r", "source": {"uri": f"{tmp_path}/{{range}}/*"}, "ranges": ranges}
    assert Case(validate(tree)).files == (tmp_path / names[2],)
    tree["source"]["uri"] += ".root"
    with pytest.raises(ConfigError, match=r"no raw files to try: range .* 0 files match .* with --in"):
        _ = Case(validate(tree)).files
    tree["source"]["convert"] = "cp {in} {out}"
    with pytest.raises(ConfigError, match=r"its outputs are read, not raw files: name one with --in, or"):
        _ = Case(validate(tree)).files


def test_the_verb_of_earlier_versions_names_its_successor():
    done = CliRunner().invoke(app, ["probe", "--steps", "5"])
    assert isinstance(done.exception, ConfigError)
    assert "crpipe probe is now crpipe plan --probe, with the same options" in str(done.exception)


def changed(config, workload):
    """Return a configuration with another workload."""
    tree = config.model_dump(mode="json", exclude_unset=True)
    tree["train"]["workload"] = workload
    return validate(tree)


def campaign_of(module, folder):
    """Return a campaign with a split range of the small package, as its first job sees it."""
    return tiny_campaign(Case(validate(small_lab.tree(module))), folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a sum", "events changed in place", "a score of another name", "a model that fails", *DOUBTED]
)
def test_the_first_job_refuses_it_before_its_first_step(name, lab, tmp_path):
    right, wrong, sentence = MISTAKES[name]
    campaign = campaign_of(lab("right"), tmp_path / "campaign")
    module = lab(f"first_{[*MISTAKES].index(name)}", right, wrong)
    campaign = Campaign.open(changed(campaign.config, f"{module}:HitEnergy"))
    heard, (link, *_) = Told(), campaign.chain.names
    refused = contextlib.nullcontext() if name in DOUBTED else pytest.raises(CrpipeError, match=sentence)
    with refused:
        train_link(campaign, link, heard, first=partial(check_first_job, campaign, link, heard))
    if name in DOUBTED:
        assert re.search(f"warning: .*{sentence}", str(heard))
    else:
        assert not list(campaign.paths.store(link).glob("*.pt"))


def test_a_first_job_checks_once(lab, tmp_path):
    campaign = campaign_of(lab("once"), tmp_path / "campaign")
    calls, (link, *_) = [], campaign.chain.names
    for _ in range(2):
        train_link(campaign, link, Told(), first=lambda: calls.append(link))
    assert calls == [link]


def test_a_disk_that_fails_says_nothing_about_a_plug_in(lab):
    case = Case(campaign_of(lab("disk"), Path("disk")).config)
    failing = mock.Mock(side_effect=OSError(errno.ESTALE, "Stale file handle", "geometry.csv"))
    with pytest.raises(DiskError, match=r"geometry\.csv: .*the file server forgot"):
        outcomes(case, [replace(CHECKS[0], run=failing)], Told())


def test_no_check_begins_after_the_time_is_over(lab):
    case = Case(campaign_of(lab("late"), Path("late")).config)
    results = outcomes(case, CHECKS[:3], Told(), 1e-9)
    assert [each.skipped for each in results[1:]] == ["no time within 0 s"] * 2
