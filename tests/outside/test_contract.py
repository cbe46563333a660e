"""The contract suite on packages from outside crpipe, as their author runs it: in a folder of their own."""

import re

import pytest

from outside.lab import HITS, TILES, Lab, changed

SUITE = ("-m", "pytest", "-q", "-p", "crpipe.contract.plugin", "--pyargs", "crpipe.contract")


@pytest.mark.slow
def test_a_package_from_outside_keeps_the_contract(tmp_path):
    """A package with a simulator: test_examples.py."""
    lab = Lab.begin(tmp_path / "lab", HITS)
    done = lab.python(*SUITE, "--crpipe-config", "crpipe.yaml")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d passed", done.stdout, re.MULTILINE)


def test_what_is_wrong_is_a_sentence(tmp_path):
    lab = Lab.begin(tmp_path / "lab", changed(TILES, source__reader="brokenlab.reading:LosesTiles"))
    done = lab.python(*SUITE, "--crpipe-config", "crpipe.yaml", "-k", "rows_are_as_the_layout_says")
    assert done.returncode == 1, done.stdout
    assert "expected 64 tiles in each event, found 63" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_command_needs_no_pytest(tmp_path):
    lab = Lab.begin(tmp_path / "lab", TILES)
    words = ["crpipe", "-c", "crpipe.yaml", "plan", "--probe", "--steps", "3"]
    program = (
        f"import sys; sys.modules['pytest'] = None; sys.argv = {words}; import crpipe.__main__ as m; m.main()"
    )
    done = lab.python("-c", program)
    assert done.returncode == 0, done.stderr
    assert re.search(r"workload tilelab.model:TileEnergy: \d\d checks passed$", done.stdout, re.MULTILINE)
