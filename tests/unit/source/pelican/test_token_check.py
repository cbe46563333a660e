import time
from dataclasses import replace

import pytest

from crpipe.config.loading import validate
from crpipe.source.pelican import login, tokens
from crpipe.source.pelican.director import Namespace
from crpipe.source.pelican.login import check_access, source_uris
from crpipe.source.pelican.tokens import Token
from tokens_needed import needing

URI = "pelican://h/ns/sim/{range}/*.parquet"
TABLE = "pelican://h/ns/geometry/g.csv"


@pytest.fixture
def answers(monkeypatch):
    """What the director says about a URI, and which token is found; no network."""
    given = {"guarded": True, "problem": "", "token": None}

    def namespace(_uri, _timeout_s):
        if given["problem"]:
            return None, given["problem"]
        return Namespace("/ns", ["https://s"], "https://s", given["guarded"], "/ns", "https://issuer"), ""

    monkeypatch.setattr(login, "namespace_of", namespace)
    monkeypatch.setattr(tokens, "find", lambda _: given["token"])
    return given


def token(scope, left_s=3600.0):
    return Token("secret", "here", {"scope": scope, "exp": time.time() + left_s, "iss": "https://issuer"})


def test_a_source_on_this_machine_needs_no_token():
    assert check_access(needing("/data/{range}/*", "geometry.csv")).problem == ""


def test_an_open_federation_needs_no_token(answers):
    answers["guarded"] = False
    assert check_access(needing(URI)).text.endswith("open to everyone, no token needed")


def test_side_tables_need_a_scope_of_their_own(answers):
    answers["token"] = token("storage.read:/sim")
    assert check_access(needing(URI)).problem == ""
    access = check_access(needing(URI, TABLE))
    assert "no scope of the token covers storage.read:/geometry; ask for one" in access.problem
    answers["token"] = token("storage.read:/sim storage.read:/geometry")
    access = check_access(needing(URI, TABLE))
    assert access.problem == ""
    assert "needs       storage.read:/sim storage.read:/geometry" in access.text
    assert "secret" not in access.text


def test_a_local_source_with_a_remote_table_needs_a_token(answers):
    assert "no token found" in check_access(needing("/data/{range}/*", TABLE)).problem


@pytest.mark.parametrize(
    ("found", "problem", "message"),
    [
        (None, "", "no token found; put one into source.token_file"),
        (token("storage.read:/sim", -5), "", "here: the token has expired"),
        (token("storage.read:/other"), "", "no scope of the token covers storage.read:/sim"),
        (token("storage.read:/sim"), "federation h: out of reach", "out of reach"),
    ],
)
def test_a_problem_is_one_line(answers, found, problem, message):
    answers |= {"token": found, "problem": problem}
    access = check_access(needing(URI))
    assert message in access.problem
    assert "verdict" not in access.text


def test_a_token_that_others_may_read_is_reported_with_what_to_type(answers, tmp_path):
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o640)
    answers["token"] = replace(token("storage.read:/sim"), file=file)
    assert f"warning     other users may read the token: chmod 600 {file}" in check_access(needing(URI)).text
    file.chmod(0o600)
    assert "warning" not in check_access(needing(URI)).text


@pytest.mark.parametrize(
    ("scope", "verdict", "problem"),
    [
        ("storage.read:/", "no scope of the token covers storage.modify:/backup", True),
        ("storage.read:/ storage.modify:/backup/other", "storage.modify:/backup", True),
        ("storage.read:/ storage.modify:/backup", "verdict     covers it", False),
        ("storage.read:/sim storage.modify:/", "no scope of the token covers storage.read:/backup", True),
    ],
)
def test_what_sync_needs_is_shown_and_a_problem_only_where_it_was_asked_for(answers, scope, verdict, problem):
    answers["token"] = token(scope)
    config = needing(URI, to="pelican://h/ns/backup")
    access = check_access(config)
    assert access.problem == ""
    assert verdict in access.text
    assert ("`crpipe token --login --write` asks for one" in access.text) is problem
    assert bool(check_access(config, write=True).problem) is problem


def test_a_second_place_on_this_machine_needs_no_token(answers):
    answers["token"] = token("storage.read:/sim")
    assert "sync.to" not in check_access(needing(URI, to="/backup")).text
    local = check_access(needing("/data/{range}/*", to="pelican://h/ns/backup"))
    assert "needs       storage.modify:/backup storage.read:/backup" in local.text
    assert local.problem == ""


def test_a_token_may_be_needed_for_files_and_tables(tmp_path):
    (tmp_path / "all.txt").write_text("pelican://h/a/x.h5\npelican://h/b/y.h5\n")
    source = {"uri": "/unused", "files": str(tmp_path / "all.txt"), "tables": {"g": "osdf:///g.csv"}}
    assert source_uris(validate({"source": source})) == (
        "pelican://h/a/x.h5",
        "pelican://h/b/y.h5",
        "osdf:///g.csv",
    )
    assert source_uris(validate({"source": {"uri": "/data/{range}/*"}})) == ("/data/{range}/*",)
