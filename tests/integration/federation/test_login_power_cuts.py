"""The power fails while `crpipe token --login` writes its tokens: the same command logs in again."""

import os
import re
import sys

import pytest

from power_cut import WAYS, chosen, cuts, made

pytestmark = [pytest.mark.federation, pytest.mark.compiler]

COUNT = int(os.environ.get("CRPIPE_CUTS", "5"))
SEED = int(os.environ.get("CRPIPE_CUT_SEED", "1"))
ACCESS, REFRESH = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+"), re.compile(r"[0-9a-f-]{36}")


def crpipe(campaign, home, *words, **variables):
    """Run a verb with all tokens below ``home``."""
    campaign.source["token_file"] = str(home / "tokens" / "access")
    return campaign.crpipe(*words, XDG_CONFIG_HOME=str(home / "config"), **variables)


def tokens_in(home):
    """Read access and refresh token; empty where there is none."""
    refresh = list((home / "config" / "crpipe").glob("refresh-*"))
    access = home / "tokens" / "access"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (access, *refresh) if path.exists())
    return access.read_text() if access.exists() else "", "".join(path.read_text() for path in refresh)


@pytest.mark.parametrize("before", ["no token", "an old token"])
def test_after_a_power_cut_the_same_command_logs_in(campaign, tmp_path, before):
    pytest.importorskip("rest_tools", reason="pip install 'crpipe[icecube]'")
    home = tmp_path / "home"
    home.mkdir()

    def login(place, **variables):
        done = crpipe(campaign, place, "token", "--login", **variables)
        assert done.returncode == 0, done.stderr

    if before == "an old token":
        login(home)
    old = tokens_in(home)
    found = cuts(home, tmp_path, lambda variables: login(home, **variables))
    new = tokens_in(home)
    for cut in found[-len(WAYS) :]:
        state = made(cut, tmp_path / "cut")
        assert tokens_in(state) == new, cut.way
    picked = chosen(found, COUNT, SEED)
    sys.stderr.write(f"login, {before}: {len(picked)} of {len(found)} states\n")
    for cut in picked:
        state = made(cut, tmp_path / "cut")
        access, refresh = tokens_in(state)
        assert access in {old[0], new[0]}
        assert refresh == "" or REFRESH.fullmatch(refresh)
        login(state)
        access, refresh = tokens_in(state)
        assert ACCESS.fullmatch(access)
        assert REFRESH.fullmatch(refresh)
        assert access not in {"", old[0]}
        assert crpipe(campaign, state, "token").returncode == 0
        assert list(state.rglob("*.part")) == []
