"""The figures of an evaluation are copied, as the rule `gallery` calls it."""

import subprocess
import sys

import pytest

from crpipe.report.gallery import gather


@pytest.fixture
def evaluation(tmp_path):
    folder = tmp_path / "evaluation of $(one)"
    (folder / "floor").mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
    return folder


def test_figures_are_copied_and_nothing_else(evaluation, tmp_path):
    (evaluation / "energy.svg").write_text("<svg/>")
    (evaluation / "floor" / "energy.svg").write_text("<svg/>")
    target = tmp_path / "figures" / "evaluation"
    subprocess.run([sys.executable, "-m", "crpipe.report.gallery", evaluation, target], check=True)
    (copied,) = target.iterdir()
    assert (copied.name, copied.read_text()) == ("energy.svg", "<svg/>")


def test_the_copies_of_a_figure_go_with_it(evaluation, tmp_path):
    for name in ("energy.svg", "energy.png", "energy.pdf", "energy.csv", "other.csv"):
        (evaluation / name).write_text(name)
    gather(evaluation, tmp_path / "figures")
    copied = {path.name for path in (tmp_path / "figures").iterdir()}
    assert copied == {"energy.svg", "energy.png", "energy.pdf", "energy.csv"}


def test_a_workload_without_figures_gives_an_empty_folder(evaluation, tmp_path):
    gather(evaluation, tmp_path / "gallery")
    assert list((tmp_path / "gallery").iterdir()) == []


def test_what_an_earlier_call_left_is_replaced(evaluation, tmp_path):
    for name in ("gallery", "gallery.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.svg").touch()
    gather(evaluation, tmp_path / "gallery")
    assert list((tmp_path / "gallery").iterdir()) == []
    assert not (tmp_path / "gallery.part").exists()
