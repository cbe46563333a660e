"""Every row of the table of faults: identical bytes, or the named error with its exit code."""

import base64
import gc
import json
import threading

import pyarrow.parquet as pq
import pytest

from crpipe.config.loading import validate
from crpipe.core.errors import CrpipeError
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range
from loopback import credentials
from misbehaving import MisbehavingFederation
from misbehaving_table import FAULTS, PAGE, section
from misbehaviours import FILES, ONE
from opened import opened
from told import Told

NAME = "0000000-0000999"
QUICK = {"attempts": 2, "read_timeout_s": 0.3, "deadline_minutes": 0.3, "concurrency": 4}


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    credentials.write_certificates(folder)
    return folder


@pytest.fixture(autouse=True)
def environment(keys, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(keys / "ca.pem"))
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = set(threading.enumerate())
    yield
    gc.collect()  # a connection that was left open is a warning, and warnings are errors
    assert set(threading.enumerate()) == before


def token_of(claims):
    """The text of a token with these claims, which no server here verifies; without claims it has none."""
    if claims is None:
        return "opaque"
    return f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}.signature"


def staged(federation, fault, tmp_path, told):
    """List and stage the range; return the rows of its staged table and the folder of the copies."""
    more = dict(fault.source)
    (tmp_path / "token").write_text(token_of(more.pop("token", None)))
    (tmp_path / "token").chmod(0o600)
    uri = federation.uri.replace("*.parquet", more.pop("pattern", "*.parquet"))
    source = {"uri": uri, "token_file": str(tmp_path / "token"), **QUICK, **more}
    config = validate({"results": str(tmp_path / "results"), "ranges": {"last": 999}, "source": source})
    list_range(opened(config), NAME, told)
    stage_range(opened(config), NAME, told)
    return pq.read_table(config.paths().staged(NAME)).to_pylist(), config.paths().raw(NAME)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.group}: {fault.what}")
def test_a_fault_has_the_outcome_of_the_table(fault, keys, tmp_path, monkeypatch):
    made = dict(fault.made)
    expected = made.pop("expected", {})
    files = made.pop("files", FILES)
    if not made.pop("trusted", True):
        monkeypatch.delenv("SSL_CERT_FILE")
    told = Told()
    with MisbehavingFederation(keys, files, fault.script(), **made) as federation:
        if fault.error:
            with pytest.raises(CrpipeError) as caught:
                staged(federation, fault, tmp_path, told)
            assert type(caught.value) is fault.error, caught.value
            assert fault.words in str(caught.value)
            assert not list(tmp_path.glob("results/staged/*.parquet"))
            return
        rows, raw = staged(federation, fault, tmp_path, told)
        seen = [rule.seen for rule in federation.rules]
    assert 0 not in seen, "the fault was not met"
    aside = [row for row in rows if row["state"] == "quarantined"]
    if fault.gives == "aside":
        [row] = aside
        assert (row["path"], fault.words in row["reason"]) == (ONE, True)
    else:
        assert aside == []
        by_server = fault.gives == "by server"
        assert any("against the server that sent them only" in line for line in told.lines) == by_server
        by_size = fault.gives == "by size" or not made.get("digests", True)
        assert any("by their size only" in line for line in told.lines) == by_size
    kept = {row["path"]: (raw / row["path"]).read_bytes() for row in rows if row["state"] == "staged"}
    assert kept == {name: expected.get(name, files[name]) for name in kept}
    assert len(rows) == len(files)
    assert not [path for path in raw.rglob("*") if path.name.endswith(".part")]


def test_the_table_of_the_docs_is_that_of_the_tests():
    page = PAGE.read_text()
    assert section(page) == page, "run python tests/support/misbehaving_table.py"


def test_the_table_holds_no_row_twice_and_no_outcome_that_hurts():
    assert len({(fault.group, fault.what) for fault in FAULTS}) == len(FAULTS)
    assert {fault.gives for fault in FAULTS} == {"same", "by server", "by size", "aside", "error"}
