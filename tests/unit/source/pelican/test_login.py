import time
from dataclasses import replace

import pytest

from crpipe.config.loading import validate
from crpipe.core.errors import AccessError, ConfigError
from crpipe.core.text import NullProgress
from crpipe.source.pelican import login, tokens
from crpipe.source.pelican.director import Namespace
from crpipe.source.pelican.login import check_access, source_uris
from crpipe.source.pelican.tokens import Token
from tokens_needed import needing
from told import Told

SIM = "pelican://h/ns/sim/{range}/*"


@pytest.fixture
def issuer(monkeypatch, tmp_path):
    """An issuer that knows one refresh token; forms that were sent to it are kept."""
    space = Namespace("/ns", ["https://s"], True, "/ns", "https://issuer")
    forms = []

    async def ask(_issuer, url, form=None):
        if form is None:
            return {"issuer": "https://issuer", "token_endpoint": f"{url}/token"}
        forms.append(form)
        good = form["refresh_token"] in {"first", "second"}
        return {"access_token": "access", "refresh_token": "second"} if good else {"error": "invalid_grant"}

    monkeypatch.setattr(login, "_ask", ask)
    monkeypatch.setattr(login, "namespace_of", lambda *_: (space, ""))
    monkeypatch.setattr(login, "_from_browser", lambda *_: "first")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return forms


def test_a_token_is_written_for_this_user_alone_and_renewed_later(issuer, tmp_path):
    config = needing(SIM, "pelican://h/ns/geo/g.csv", token_file=tmp_path / "token")
    told = Told()
    login.log_in(config, told)
    [kept] = (tmp_path / "home" / "crpipe").iterdir()
    assert {path.stat().st_mode & 0o777 for path in (kept, tmp_path / "token")} == {0o600}
    assert (tmp_path / "token").read_text() == "access"
    assert told.lines[-1].endswith("from https://issuer for storage.read:/sim storage.read:/geo")
    login.log_in(config, told)
    assert [form["refresh_token"] for form in issuer] == ["first", "second"]
    assert kept.read_text() == "second"


def test_a_token_that_may_write_is_asked_for_by_name_and_renewed_apart(issuer, tmp_path):
    config = needing(SIM, token_file=tmp_path / "token", to="pelican://h/ns/backup")
    told = Told()
    login.log_in(config, told, write=True)
    scope = "storage.read:/sim storage.modify:/backup storage.read:/backup"
    assert told.lines[-1].endswith(f"from https://issuer for {scope}")
    login.log_in(config, told)
    assert told.lines[-1].endswith("for storage.read:/sim")
    names = sorted(path.name for path in (tmp_path / "home" / "crpipe").iterdir())
    assert [name.startswith("refresh-write-") for name in names] == [False, True]
    alone = needing("/data/*.h5", token_file=tmp_path / "token", to="pelican://h/ns/backup")
    login.log_in(alone, told, write=True)
    assert told.lines[-1].endswith("for storage.modify:/backup storage.read:/backup")


@pytest.mark.parametrize("to", ["", "/backup"])
def test_where_nothing_remote_is_written_a_login_to_write_is_refused(issuer, to):
    with pytest.raises(ConfigError, match="--write: sync.to is .*, no federation"):
        login.log_in(needing(SIM, to=to), NullProgress(), write=True)
    assert issuer == []


def test_two_issuers_need_two_configurations(issuer, monkeypatch):
    def namespace(uri, _timeout_s):
        name = "https://other" if "backup" in uri else "https://issuer"
        return Namespace("/ns", ["https://s"], True, "/ns", name), ""

    monkeypatch.setattr(login, "namespace_of", namespace)
    with pytest.raises(AccessError, match="issued by https://other, those of the source by https://issuer"):
        login.log_in(needing(SIM, to="pelican://h/ns/backup"), NullProgress(), write=True)


def test_an_issuer_that_refuses_its_own_token_is_told(issuer, tmp_path, monkeypatch):
    monkeypatch.setattr(login, "_from_browser", lambda *_: "unknown")
    with pytest.raises(AccessError, match="refuses the token that it just gave; check source.token_client"):
        login.log_in(needing(SIM, token_file=tmp_path / "token"), NullProgress())
    assert not (tmp_path / "token").exists()


def test_a_local_source_needs_no_login():
    with pytest.raises(AccessError, match="no federation, no token needed"):
        login.log_in(needing("/data/*.h5"), NullProgress())


def test_issuers_of_like_names_keep_their_refresh_tokens_apart(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert login._refresh_file("https://issuer.x") != login._refresh_file("https://issuer-x")


@pytest.mark.parametrize(
    ("issuer", "named"),
    [
        ("https://issuer", {"token_endpoint": "http://issuer/token"}),
        ("https://issuer", {"token_endpoint": "https://elsewhere/token"}),
        ("https://issuer", {"token_endpoint": "https://issuer.elsewhere/token"}),
        ("https://issuer", {}),
        ("http://issuer", {"token_endpoint": "http://issuer/token"}),
        (
            "https://issuer",
            {
                "token_endpoint": "https://issuer/token",
                "device_authorization_endpoint": "https://elsewhere/d",
            },
        ),
    ],
)
def test_a_secret_is_sent_to_the_issuer_alone_and_over_https(monkeypatch, issuer, named):
    async def ask(_issuer, _url, _form=None):
        return named

    monkeypatch.setattr(login, "_ask", ask)
    with pytest.raises(AccessError, match="not an https address of the issuer itself; nothing is sent there"):
        login._endpoints(issuer)


URI = "pelican://h/ns/sim/{range}/*.parquet"
TABLE = "pelican://h/ns/geometry/g.csv"


@pytest.fixture
def answers(monkeypatch):
    """What the director says about a URI, and which token is found; no network."""
    given = {"guarded": True, "problem": "", "token": None}

    def namespace(_uri, _timeout_s):
        if given["problem"]:
            return None, given["problem"]
        return Namespace("/ns", ["https://s"], given["guarded"], "/ns", "https://issuer"), ""

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
