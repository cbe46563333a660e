"""The code of packages from outside is recorded: a change is named, and data half made refuse it."""

import json
import shutil

import pytest

from outside.lab import HITS, PACKAGES, RANGES, Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FIRST, SECOND = RANGES


@pytest.fixture
def lab(tmp_path):
    """A campaign whose first range is split, and packages that the test may change."""
    shutil.copytree(PACKAGES, tmp_path / "packages", ignore=shutil.ignore_patterns("__pycache__"))
    lab = Lab.begin(tmp_path / "campaign", HITS, tmp_path / "packages")
    lab.say("tables")
    for name in RANGES:
        lab.say("list", name)
        lab.say("stage", name)
    lab.say("split", FIRST)
    return lab


def change(lab, module):
    """Change the code of hitlab, not what it does."""
    with (lab.folder.parent / "packages" / "hitlab" / module).open("a") as file:
        file.write("\n# another line\n")


def entries(path):
    return json.loads(path.read_text())["entries"]


def test_a_changed_reader_is_refused_until_a_person_accepts_it(lab):
    (first,) = entries(lab.folder / "results" / "code.json")
    assert first["since"] == FIRST
    assert list(first["code"]) == ["source.reader"]
    change(lab, "reading.py")
    refused = lab.crpipe("split", SECOND)
    assert refused.returncode == 2, refused.stderr
    for words in (
        "the code of hitlab.reading:HitFiles changed: package hitlab",
        f"split {SECOND} --accept-code",
    ):
        assert words in " ".join(refused.stderr.split())
    assert not (lab.folder / "results" / "ledgers" / f"{SECOND}.json").exists()
    assert "is not the" not in lab.say("split", FIRST)  # it is whole: nothing is read
    assert "the code of hitlab.reading:HitFiles changed" in lab.say("check")
    lab.say("split", SECOND, "--accept-code")
    ledgers = [json.loads((lab.folder / f"results/ledgers/{name}.json").read_text()) for name in RANGES]
    assert "code" not in ledgers[0]
    assert ledgers[1]["code"]["accepted"] is True
    assert ledgers[1]["code"] == entries(lab.folder / "results" / "code.json")[-1]
    assert "changed" not in lab.say("check")


def test_a_changed_workload_is_said_or_refused_and_every_use_of_older_checkpoints_says_it(lab, tmp_path):
    change(lab, "model.py")  # no reader imports it
    lab.say("split", SECOND)
    lab.say("train", FIRST)
    change(lab, "model.py")
    refused = lab.crpipe("--set", "train.on_code_change=refuse", "train", SECOND)
    assert refused.returncode == 2, refused.stderr
    assert "the code of hitlab.model:HitPosition changed" in refused.stderr
    done = lab.crpipe("train", SECOND)
    assert done.returncode == 0, done.stderr
    assert "the run goes on with it" in done.stderr + done.stdout
    assert [entry["since"] for entry in entries(lab.run / "code.json")] == [FIRST, SECOND]
    for link, is_other in ((FIRST, True), (SECOND, False)):
        words = (
            "--checkpoint",
            link,
            "--in",
            "raw/batch_1.parquet",
            "--out",
            str(tmp_path / f"{link}.parquet"),
        )
        predicted = lab.crpipe("predict", *words)
        assert predicted.returncode == 0, predicted.stderr
        assert ("what it predicts may have changed" in predicted.stderr) == is_other
    (line,) = [line for line in lab.say("compare", "first").splitlines() if line.split()[:1] == ["code"]]
    newest = entries(lab.run / "code.json")[-1]["code"]["train.workload"]["sha256"]
    assert newest[:12] in line
    lab.say("export", "--checkpoint", SECOND, "--out", str(tmp_path / "export"))
    assert newest[:12] in (tmp_path / "export" / "MODEL_CARD.md").read_text()
    exported = json.loads((tmp_path / "export" / "config.json").read_text())
    assert exported["code"]["train.workload"]["sha256"] == newest
