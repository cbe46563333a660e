"""A package that declares its workload has the rights of crpipe's own in `init`; a named class is checked."""

import shutil

import pytest
import yaml

from installed import declare
from outside.lab import Lab
from runs import REPOSITORY

START = """\
about: classes of jets from their particles
workload: jets.model:JetTagger
readers: {"jets.reading:ParquetJets": {about: Parquet}, "jets.reading:NpzJets": {about: NPZ}}
always: {train: {schedule: {shape: cosine}}, model: {hidden: 24}}
"""


@pytest.fixture
def lab(tmp_path):
    """A folder without a campaign, and the examples as installed packages; calo gives its name alone."""
    packages = tmp_path / "packages"
    shutil.copytree(REPOSITORY / "examples", packages, ignore=shutil.ignore_patterns("__pycache__"))
    declare(packages, "jets", "jets")
    declare(packages, "calo", "calo.model:VoxelFlow")
    (packages / "jets" / "start.yaml").write_text(START)
    lab = Lab.begin(tmp_path / "campaign", {"source": {}}, packages)
    (lab.folder / "crpipe.yaml").unlink()
    return lab


def written(lab):
    text = (lab.folder / "crpipe.yaml").read_text()
    return text, yaml.safe_load(text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_init_looks_at_the_files_with_the_readers_of_a_package(lab, kind):
    lab.python("-m", "jets.data", "data", kind)
    said = lab.say("init", "--uri", "data", "--yes")
    reader = f"jets.reading:{'Parquet' if kind == 'parquet' else 'Npz'}Jets"
    assert f"read by {reader}; workload jets" in said
    assert "about 3,200 events in 3,200 groups" in said
    _, tree = written(lab)
    assert tree["source"]["reader"] == reader
    assert tree["train"]["workload"] == "jets.model:JetTagger"
    assert (tree["train"]["schedule"]["shape"], tree["model"]["hidden"]) == ("cosine", 24)
    assert "jets.model:JetTagger: they fit together" in " ".join(lab.say("plan").split())


def test_a_short_name_alone_is_enough(lab):
    said = lab.crpipe("init", "--workload", "jet", "--uri", "synthetic://", "--yes")
    assert said.returncode == 2
    assert (
        "--workload jet: not known; write one of calo, direction, jets, muons, xec, or module" in said.stderr
    )
    plugins = ("--reader", "calo.simulation:ShowerFiles", "--simulator", "calo.simulation:Showers")
    lab.say("init", "--workload", "calo", "--uri", "synthetic://", *plugins, "--yes")
    _, tree = written(lab)
    assert tree["train"]["workload"] == "calo.model:VoxelFlow"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("jets.model:JetTager", "train.workload: jets.model has no class JetTager; it offers"),
        ("jets.modul:JetTagger", "jets.modul cannot be imported"),
        (
            "calo.model:VoxelFlow",
            "VoxelFlow reads the event columns energy_gev, which jets.reading",
        ),
    ],
)
def test_a_class_that_is_named_is_checked(lab, name, sentence):
    lab.python("-m", "jets.data", "data", "parquet")
    words = ("--uri", "data", "--reader", "jets.reading:ParquetJets", "--yes")
    refused = lab.crpipe("init", "--workload", name, *words)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert not (lab.folder / "crpipe.yaml").exists()


@pytest.mark.slow
def test_options_of_a_named_class_are_written_with_their_meaning(lab):
    lab.python("-m", "jets.data", "data", "parquet")
    words = ("--uri", "data", "--reader", "jets.reading:ParquetJets", "--yes")
    lab.say("init", "--workload", "jets.model:JetTagger", *words)
    text, tree = written(lab)
    assert tree["model"] == {"hidden": 32, "learning_rate": 0.003}
    assert "  # width of the layers  [" in text


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (START.replace("readers:", "reader:"), "start.yaml: reader: unknown key; did you mean readers?"),
        ("about: jets", "start.yaml: workload: Field required"),
        ("about: [", "start.yaml: no YAML: while parsing"),
        (None, "start.yaml: No such file or directory"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(lab, start, sentence):
    path = lab.folder.parent / "packages" / "jets" / "start.yaml"
    path.unlink() if start is None else path.write_text(start)
    refused = lab.crpipe("init", "--workload", "muons", "--uri", "synthetic://", "--yes")
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr


def test_two_packages_with_one_name_are_refused(lab):
    declare(lab.folder.parent / "packages", "muons", "others")
    refused = lab.crpipe("init", "--workload", "muons", "--uri", "synthetic://", "--yes")
    assert "workload muons: declared twice, by crpipe.workloads.muons and others; uninstall" in refused.stderr
