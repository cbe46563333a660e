import json
import sqlite3
import time

import pytest

from crpipe.core.errors import SourceError
from loopback import origin
from loopback.topology import Topology


def test_the_server_s_configuration_names_the_folder_and_the_port(tmp_path, monkeypatch):
    monkeypatch.setattr(origin.os, "geteuid", lambda: 1000)
    for name in ("keys", "cache/scitokens"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "keys" / "jwks.json").write_text('{"keys": []}')
    origin.configure(tmp_path, Topology(1000, 2000))
    text = (tmp_path / "origin.cfg").read_text()
    assert f"oss.localroot {tmp_path}/data" in text
    assert "xrd.port 2000" in text
    assert "issuer = https://localhost:1000/issuer" in (tmp_path / "scitokens.cfg").read_text()
    with sqlite3.connect(tmp_path / "cache" / "scitokens" / "scitokens_cpp.sqllite") as cache:
        ((issuer, row),) = cache.execute("SELECT issuer, keys FROM keycache").fetchall()
    cache.close()
    assert issuer == "https://localhost:1000/issuer"
    assert json.loads(row)["expires"] > time.time()


def test_a_folder_that_the_server_could_not_enter_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(origin.os, "geteuid", lambda: 0)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(SourceError, match="may not enter; choose a folder outside"):
        origin.check_reachable(closed / "federation")


def test_a_missing_server_ends_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setattr(origin.shutil, "which", lambda _: None)
    assert not origin.is_installed()
    with pytest.raises(SourceError, match="apt-get install --no-install-recommends xrootd-server"):
        origin.start(tmp_path)
