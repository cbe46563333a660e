import base64
import json
import os
import time

import pytest

from crpipe.core.errors import AccessError
from crpipe.source.pelican import tokens
from crpipe.source.pelican.tokens import Token, Tokens, find, find_for, scope_for
from crpipe.source.retries import TemporaryFailure, redact

PRODUCTION = "pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing/{range}/*.parquet"


def jwt(**claims):
    parts = [{"alg": "ES256"}, {"exp": time.time() + 3600, **claims}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, "c2lnbmF0dXJl"])


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No token of the person who runs the tests may be found."""
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(tokens, "_temporary_file", lambda: tmp_path / "temporary")
    (tmp_path / "runtime").mkdir()


@pytest.mark.parametrize(
    ("uri", "base", "scope"),
    [
        (PRODUCTION, "/icecube/wipac", "storage.read:/data/sim/IceCube/2025/testing"),
        ("osdf:///icecube/wipac/data/{range}/*.h5", "/icecube/wipac/", "storage.read:/data"),
        ("pelican://h:1/a/b/0042000-0042999/*.parquet", "/a", "storage.read:/b"),
        ("pelican://h/a/b/c*/d/*.parquet", "/a", "storage.read:/b"),
        ("pelican://h/a/{range}/*.parquet", "/a", "storage.read:/"),
        ("pelican://h/other/{range}/*.parquet", "/a", "storage.read:/other"),
    ],
)
def test_the_scope_covers_every_range_and_is_relative_to_the_issuer(uri, base, scope):
    assert scope_for(uri, base) == scope


def test_claims_that_are_no_text_name_nothing():
    token = Token.parse(jwt(aud=5, scope=7), "here")
    assert not token.is_for("one")
    assert token.lacks("storage.read:/", "").startswith("the token's scope is 7")


@pytest.mark.parametrize(
    ("scope", "covers"),
    [
        ("storage.read:/data", True),
        ("storage.read:/", True),
        ("compute.read storage.read:/data/sim", True),
        ("storage.read:/data/simulation", False),
        ("storage.modify:/data", False),
        ("", False),
    ],
)
def test_what_a_scope_covers(scope, covers):
    assert Token.parse(jwt(scope=scope), "here").covers("storage.read:/data/sim") is covers


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    places = {name: jwt(sub=name) for name in ("config", "variable", "file", "runtime", "temporary")}
    for name in ("config", "file", "temporary"):
        (tmp_path / name).write_text(places[name])
    (tmp_path / "runtime" / f"bt_u{os.getuid()}").write_text(places["runtime"] + "\n")
    monkeypatch.setenv("BEARER_TOKEN", places["variable"])
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "file"))

    assert find(str(tmp_path / "config")).text == places["config"]
    assert find("").text == places["variable"]
    monkeypatch.delenv("BEARER_TOKEN")
    assert find("").text == places["file"]
    monkeypatch.delenv("BEARER_TOKEN_FILE")
    assert find("").text == places["runtime"]
    (tmp_path / "runtime" / f"bt_u{os.getuid()}").unlink()
    assert find("").text == places["temporary"]
    (tmp_path / "temporary").unlink()
    assert find("") is None


@pytest.mark.parametrize(
    ("uri", "needed"), [(PRODUCTION, True), ("osdf:///a/{range}/*", True), ("/data/{range}/*", False)]
)
def test_only_a_federation_needs_a_token(monkeypatch, uri, needed):
    monkeypatch.setenv("BEARER_TOKEN", jwt())
    assert (find_for([uri], "") is not None) is needed


@pytest.mark.parametrize("end", ["soon", None, {}, 10**400, 1e300])
def test_an_end_that_is_no_number_is_no_end(end):
    assert Token.parse(jwt(exp=end), "here").left_s == float("inf")


def test_json_around_a_token_is_understood(tmp_path):
    text = jwt(iss="https://issuer")
    (tmp_path / "token").write_text(json.dumps({"access_token": text, "expires_in": 3600}))
    assert find(str(tmp_path / "token")).text == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "an empty token"),
        ("one\ntwo", "holds more than a token"),
        ("t\u00f6ken", "holds more than a token"),
        ("\x00", "holds more than a token"),
        ('{"a": 1}', "JSON without access_token"),
        (None, "cannot be read"),
    ],
)
def test_an_unusable_place_is_an_error_that_names_it(tmp_path, content, message):
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(AccessError, match=rf"token.*{message}"):
        find(str(tmp_path / "token"))


def test_a_token_is_read_again_before_it_ends_and_after_it_was_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text(jwt(exp=time.time() + 30))
    current = Tokens(str(path))
    ending = current.current()
    path.write_text(jwt(sub="second"))
    second = current.current()
    assert second.text != ending.text
    assert not current.reload(second)
    path.write_text(jwt(sub="third"))
    assert current.current() == second
    assert current.reload(second)
    assert current.current().claims["sub"] == "third"


def test_an_expired_token_is_refused_with_its_time_and_place(tmp_path):
    (tmp_path / "token").write_text(jwt(exp=0))
    with pytest.raises(
        AccessError, match=r"source\.token_file .*: the token expired on 1970-01-01 00:00:00 UTC"
    ):
        Tokens(str(tmp_path / "token")).current()


def test_an_opaque_token_is_taken_as_it_is(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef")
    token = Tokens(str(tmp_path / "token")).current()
    assert (token.text, token.claims, token.scopes) == ("0123456789abcdef", {}, [])


def test_tokens_never_show_in_texts_or_reprs():
    secret = jwt()
    assert secret not in repr(Token.parse(secret, "here"))
    texts = [
        f"https://h/p?authz={secret}&x=1",
        f"Authorization: Bearer {secret}",
        "https://h/p?authz=opaque0123&x=1",
    ]
    shown = [redact(text) for text in texts]
    assert shown == [
        "https://h/p?authz=[hidden]&x=1",
        "Authorization: Bearer [hidden]",
        "https://h/p?authz=[hidden]&x=1",
    ]


@pytest.mark.parametrize("half", [None, "", '{"access', "0.1"])
def test_a_file_that_is_being_replaced_is_read_again_while_the_old_token_is_valid(tmp_path, half):
    path = tmp_path / "token"
    old, new = jwt(exp=time.time() + 30), jwt(sub="new")
    path.write_text(old)
    current = Tokens(str(path))
    token = current.current()
    write = {None: path.unlink, "0.1": lambda: path.write_text(new[: len(new) - 3])}
    write.get(half, lambda: path.write_text(half))()
    assert current.current().text == old
    path.write_text(new)
    assert current.current().text == new
    assert token.text == old


def test_a_file_that_is_being_replaced_ends_nothing_when_the_old_token_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text(jwt())
    current = Tokens(str(path))
    token = current.current()
    path.write_text("")
    with pytest.raises(TemporaryFailure, match="the token was refused; .* an empty token"):
        current.reload(token)
    path.write_text(jwt(sub="new"))
    assert current.reload(token)


def test_a_token_that_others_may_read_is_reported(tmp_path):
    path = tmp_path / "token"
    path.write_text(jwt())
    path.chmod(0o644)
    said = []
    Tokens(str(path), said.append).current()
    assert said == [f"warning: other users may read the token: chmod 600 {path}"]
    os.system(said[0].partition(": ")[2].partition(": ")[2])  # the remedy, as a person types it
    Tokens(str(path), said.append).current()
    assert len(said) == 1


def test_opaque_tokens_never_show():
    texts = [
        "Authorization: Bearer opaque-0123",
        '{"access_token": "opaque0123", "x": 1}',
        "refresh_token=opaque0123&x=1",
        "Bearer%20opaque0123",
    ]
    assert not any("0123" in redact(text) for text in texts)
    assert redact("Bearer of news") == "Bearer [hidden] news"
