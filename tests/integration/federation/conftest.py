"""A real federation on loopback, and campaigns of it; the servers that misbehave are in misbehaving.py."""

import gc
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import runs
from crpipe.campaign.raw_files import read_manifest
from crpipe.config.loading import validate
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range
from loopback import origin
from loopback.federation import LoopbackFederation
from misbehaving import MisbehavingFederation
from opened import opened

TREE = "/icecube/wipac/data/sim/testing"
NAME = Range.parse("0000000-0000999")
FILES = 12
LARGE = "large.parquet"


@pytest.fixture(scope="session")
def federation():
    """Origin, director and issuer on free ports; one range of small files and one large file."""
    if not origin.is_installed():
        message = f"no xrootd here: {origin.INSTALL}"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    # Not below pytest's own directory: the server runs as another user, who may not look into that.
    folder = Path(tempfile.mkdtemp(prefix="crpipe-federation-"))
    folder.chmod(0o755)
    loopback = LoopbackFederation(folder)
    data = loopback.data / TREE.lstrip("/") / str(NAME)
    data.mkdir(parents=True)
    for index in range(FILES):
        (data / f"part-{index:04d}.parquet").write_bytes(like_parquet(20_000 + index))
    (data / LARGE).write_bytes(like_parquet(8_000_000))
    (data / "README.txt").write_text("not a data file")
    try:
        loopback.up()
        yield loopback
    finally:
        loopback.down()
        shutil.rmtree(folder)


def like_parquet(size):
    """Random bytes that begin and end as a Parquet file does."""
    return b"PAR1" + os.urandom(size - 8) + b"PAR1"


class Campaign:
    """List and stage the federation's range with a configuration of its own."""

    def __init__(self, federation, folder):
        self.federation = federation
        self.folder = folder
        self.token_file = folder / "token"
        self.lines = []
        self.source = {
            "uri": federation.uri(f"{TREE}/{{range}}/part-*.parquet"),
            "token_file": str(self.token_file),
            "concurrency": 4,
            "attempts": 4,
            "read_timeout_s": 1.0,
        }
        self.give_token()

    def give_token(self, scope="storage.read:/data/sim/testing", lifetime_s=3600):
        text = self.federation.token(scope, lifetime_s)
        self.token_file.write_text(text)
        return text

    def config(self, **source):
        tree = {"results": str(self.folder / "results"), "ranges": {"last": 999}}
        return validate({**tree, "source": {**self.source, **source}})

    def message(self, text):
        self.lines.append(text)

    def update(self, label, done, total, note=""):
        self.lines.append(f"{label} {done}/{total} {note}")

    def list(self, **source):
        config = self.config(**source)
        list_range(opened(config), str(NAME), self)
        return read_manifest(config.paths().manifest(str(NAME)))

    def stage(self, **source):
        config = self.config(**source)
        if not config.paths().manifest(str(NAME)).exists():
            list_range(opened(config), str(NAME), NullProgress())
        stage_range(opened(config), str(NAME), self)
        return pq.read_table(config.paths().staged(str(NAME))).to_pylist()

    def crpipe(self, *words, **variables):
        """Run a verb in a process of its own."""
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(self.config().model_dump(mode="json")))
        return runs.Campaign(self.folder).process(runs.BIN / "crpipe", "-c", path, *words, **variables)

    @property
    def raw(self):
        return self.config().paths().raw(str(NAME))

    @property
    def truth(self):
        return self.federation.data / TREE.lstrip("/") / str(NAME)

    def assert_identical(self, rows):
        """Every staged file is byte for byte the origin's, and nothing half-done is left."""
        assert rows
        for row in rows:
            assert (self.raw / row["path"]).read_bytes() == (self.truth / row["path"]).read_bytes()
        assert not list(self.raw.glob("*.part"))

    def ways(self, rows):
        return Counter(row["verified"] for row in rows)


@pytest.fixture
def campaign(federation, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(federation.certificate))
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield Campaign(federation, tmp_path)
    gc.collect()


@pytest.fixture
def misbehaving(federation, campaign):
    """Servers with the same small files, from which the campaign lists and stages them instead."""
    files = {path.name: path.read_bytes() for path in campaign.truth.glob("part-*.parquet")}
    campaign.give_token("storage.read:/")
    with MisbehavingFederation(federation.folder / "keys", files, guarded=True) as servers:
        campaign.source["uri"] = servers.uri
        yield servers
