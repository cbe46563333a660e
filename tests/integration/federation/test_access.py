"""What `crpipe token` tells, against a real director and issuer."""

import subprocess
import sys
from dataclasses import replace

import pytest

from crpipe.source.pelican.login import check_access

pytestmark = pytest.mark.federation


def test_a_good_token_is_shown_without_its_text(campaign):
    shown = campaign.crpipe("token")
    assert shown.returncode == 0
    assert "needs       storage.read:/data/sim/testing" in shown.stdout
    assert f"token from  source.token_file ({campaign.token_file})" in shown.stdout
    assert "covers every range of this campaign" in shown.stdout
    for part in campaign.token_file.read_text().split("."):
        assert part not in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    ("scope", "lifetime_s", "problem"),
    [
        ("storage.read:/data/sim/testing", -5, "the token has expired; renew it"),
        (
            "storage.read:/data/sim/testing/0000000-0000999",
            60,
            "no scope of the token covers storage.read:/data/sim",
        ),
    ],
)
def test_a_useless_token_is_a_problem_and_an_exit_code(campaign, scope, lifetime_s, problem):
    campaign.give_token(scope, lifetime_s)
    shown = campaign.crpipe("token")
    assert shown.returncode == 77
    assert problem in shown.stderr


@pytest.fixture
def lost_director(federation):
    """Send clients to a port where nobody is, for one test."""
    topology = federation.topology
    replace(topology, director="https://localhost:9").save(federation.folder)
    yield
    topology.save(federation.folder)


@pytest.mark.usefixtures("lost_director")
def test_a_director_out_of_reach_is_told(campaign):
    assert "out of reach (connection refused)" in check_access(campaign.config()).problem


def test_sources_that_need_no_token_say_so(campaign, federation):
    open_uri = federation.uri("/public/{range}/*.parquet")
    assert check_access(campaign.config(uri=open_uri)).text.endswith("open to everyone, no token needed")
    assert check_access(campaign.config(uri="/data/{range}/*.parquet")).problem == ""


def test_logging_in_gets_a_token_and_later_renews_it_without_a_browser(campaign, tmp_path):
    pytest.importorskip("rest_tools", reason="pip install 'crpipe[icecube]'")
    campaign.token_file.unlink()
    first = campaign.crpipe("token", "--login", XDG_CONFIG_HOME=str(tmp_path / "home"))
    assert first.returncode == 0, first.stderr
    assert "LOOP-BACK" in first.stdout
    token = campaign.token_file.read_text()
    kept = next((tmp_path / "home" / "crpipe").iterdir())
    assert {path.stat().st_mode & 0o777 for path in (kept, campaign.token_file)} == {0o600}
    second = campaign.crpipe("token", "--login", XDG_CONFIG_HOME=str(tmp_path / "home"))
    assert second.returncode == 0
    assert "LOOP-BACK" not in second.stdout
    assert campaign.token_file.read_text() != token
    campaign.assert_identical(campaign.stage())


def test_without_the_optional_extra_the_install_command_is_told(campaign):
    if (
        subprocess.run(
            [sys.executable, "-c", "import rest_tools"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        pytest.skip("wipac-rest-tools is installed")
    shown = campaign.crpipe("token", "--login")
    assert shown.returncode == 2
    assert "pip install 'crpipe[icecube]'" in shown.stderr
