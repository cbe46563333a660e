"""The recipes of docs/weeks.md for notifications reach a mail program and a server on this machine."""

import json
import os
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from checked import Checked

PAGE = (Path(__file__).parents[2] / "docs" / "weeks.md").read_text()
(BLOCK,) = re.findall(r"```yaml\n(# mail\n.*?)```", PAGE, re.DOTALL)
MAIL, WEBHOOK, NTFY = (tree["failure"] for tree in yaml.safe_load_all(BLOCK))
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="apt-get install curl")


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server that keeps what is posted; its address is in the files that the recipes read."""
    posted = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, dict(self.headers), body.decode()))
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Keeper) as keeper:
        threading.Thread(target=keeper.serve_forever, daemon=True).start()
        folder = tmp_path / ".config" / "crpipe"
        folder.mkdir(parents=True)
        for name in ("channel", "ntfy"):
            address = f"http://127.0.0.1:{keeper.server_port}/{name}"
            (folder / f"{name}.curlrc").write_text(f'url = "{address}"\n')
        monkeypatch.setenv("HOME", str(tmp_path))
        yield posted, keeper.server_port
        keeper.shutdown()


def notify(tmp_path, recipe):
    return Checked(tmp_path, (f"notify.failure={json.dumps(recipe)}",)).crpipe("notify", "failure")


def test_mail_gets_subject_and_status(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "mail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/words\ncat > {tmp_path}/letter\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(program.parent), "/usr/bin", "/bin")))
    notify(tmp_path, MAIL)
    assert (
        tmp_path / "words"
    ).read_text() == "-s|crpipe tiny: failure, 0 of 2 ranges trained|me@example.org|"
    assert "0 of 2 ranges" in (tmp_path / "letter").read_text()


@needs_curl
def test_a_webhook_gets_the_status_as_text(tmp_path, server):
    notify(tmp_path, WEBHOOK)
    [(path, headers, body)] = server[0]
    assert (path, headers["Content-Type"]) == ("/channel", "application/json")
    assert json.loads(body)["text"].startswith("crpipe tiny: failure, 0 of 2 ranges trained\n")


@needs_curl
def test_ntfy_gets_a_title(tmp_path, server):
    notify(tmp_path, NTFY)
    [(path, headers, body)] = server[0]
    assert path == "/ntfy"
    assert headers["Title"] == "crpipe tiny: failure, 0 of 2 ranges trained"
    assert "0 of 2 ranges" in body


@needs_curl
def test_a_channel_that_answers_an_error_is_reported(tmp_path, server):
    rc = tmp_path / ".config" / "crpipe" / "channel.curlrc"
    rc.write_text(f'url = "http://127.0.0.1:{server[1]}/broken"\n')
    with pytest.raises(Exception, match="the command ended with 22"):
        notify(tmp_path, WEBHOOK)
