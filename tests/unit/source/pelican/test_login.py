import pytest

from crpipe.core.errors import AccessError, ConfigError
from crpipe.core.text import NullProgress
from crpipe.source.pelican import login
from crpipe.source.pelican.director import Namespace
from tokens_needed import needing
from told import Told

SIM = "pelican://h/ns/sim/{range}/*"


@pytest.fixture
def issuer(monkeypatch, tmp_path):
    """An issuer that knows one refresh token; forms that were sent to it are kept."""
    space = Namespace("/ns", ["https://s"], "https://s", True, "/ns", "https://issuer")
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
        return Namespace("/ns", ["https://s"], "https://s", True, "/ns", name), ""

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
