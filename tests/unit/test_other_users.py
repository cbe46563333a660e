"""What another user of the machine may read, write, or put in the place of a file of crpipe."""

import asyncio
import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from crpipe.campaign.raw_files import Entry, Verification
from crpipe.core import files
from crpipe.core.errors import DiskError, SourceError
from crpipe.core.files import atomic_write, write_secret
from crpipe.core.journal import Journal
from crpipe.core.lease import is_held, lease, owner_of
from crpipe.core.text import NullProgress
from crpipe.source.copies import VerificationLog
from crpipe.source.local import LocalSource
from crpipe.source.pelican import login, tokens
from crpipe.source.pelican.director import Namespace
from crpipe.source.pelican.download import PartialFile
from crpipe.source.uris import SourceOptions
from loopback import origin
from loopback.credentials import write_certificates, write_issuer
from loopback.federation import LoopbackFederation
from tokens_needed import needing

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


@pytest.fixture(params=[0o000, 0o022])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def shared():
    """A folder that everybody may write to, as /tmp is; below no folder that others may not enter."""
    folder = Path(tempfile.mkdtemp(prefix="crpipe-shared-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def mode(path):
    return path.stat().st_mode & 0o777


def as_nobody(*words):
    """Run a command as another user; return its exit status."""
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False).returncode


# Files with names that anybody can guess, and what opens them for writing.


def take(folder):
    with lease(folder, wait_s=0, say=str):
        pass


def note(folder):
    Journal(folder / "journal.jsonl").add("start")


def download(folder):
    with PartialFile(folder / "a.parquet.part", 4, "crc32c") as part:
        part.write(b"evil")


def copy(folder):
    source = folder / "source"
    source.write_bytes(b"evil")
    asyncio.run(LocalSource().fetch(Entry("a", str(source), 4, None), folder / "a.part"))


def prove(folder):
    with VerificationLog(folder, SourceOptions(require_checksum=False)) as proofs:
        proofs.add(Entry("a", "pelican://h/a", 4, None), Verification(4, "0", "crc32c", "size-only"))


WRITERS = {
    "lease": take,
    "journal.jsonl": note,
    "a.parquet.part": download,
    "a.part": copy,
    ".proofs.jsonl": prove,
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_link_that_was_planted(tmp_path, name):
    folder, victim = tmp_path / "a folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("of another program")
    (folder / name).symlink_to(victim)
    with pytest.raises(DiskError) as caught:
        WRITERS[name](folder)
    assert victim.read_text() == "of another program"
    removal = str(caught.value).partition("remove it (")[2].partition("),")[0]
    subprocess.run(shlex.split(removal), check=True)
    WRITERS[name](folder)
    assert victim.read_text() == "of another program"


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_waits_for_a_pipe_that_was_planted(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DiskError, match=r"a link, a pipe or a device.*remove it"):
        WRITERS[name](tmp_path)


def test_a_link_where_a_new_file_is_made_leads_nowhere(tmp_path):
    """It dangles: opening it would make a file of this user wherever it leads."""
    (tmp_path / "lease").symlink_to(tmp_path / "made")
    with pytest.raises(DiskError):
        take(tmp_path)
    assert not (tmp_path / "made").exists()


def test_reports_do_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "lease")
    assert not is_held(tmp_path / "lease")
    assert owner_of(tmp_path / "lease") == "an unknown process"
    os.mkfifo(tmp_path / "journal.jsonl")
    assert Journal(tmp_path / "journal.jsonl").rows() == []


def test_names_of_temporary_files_cannot_be_guessed(tmp_path):
    """Links at the names that a counter would give: none of them is written through."""
    victim = tmp_path / "victim"
    victim.write_text("of another program")
    for number in range(5000):
        name = f".receipt.json.{files._HOST}.{os.getpid()}.{number}.part"
        (tmp_path / name).symlink_to(victim)
    for _ in range(20):
        with atomic_write(tmp_path / "receipt.json") as part:
            part.write_text("{}")
    assert victim.read_text() == "of another program"
    assert not (tmp_path / "receipt.json").is_symlink()


def test_a_link_at_the_final_name_is_replaced_itself(tmp_path):
    (tmp_path / "victim").write_text("of another program")
    for write in (files.write_json, lambda path, _: write_secret(path, b"s")):
        link = tmp_path / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / "victim")
        write(link, {})
        assert not link.is_symlink()
    assert (tmp_path / "victim").read_text() == "of another program"


def test_secrets_are_readable_by_their_user_alone(tmp_path, umask, monkeypatch):
    """Token, refresh token and its folders; keys, token and all other files of a federation."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.setattr(login, "_from_browser", lambda *_: "first")
    space = Namespace("/ns", ["https://s"], True, "/ns", "https://issuer")
    monkeypatch.setattr(login, "namespace_of", lambda *_: (space, ""))

    async def ask(_issuer, url, form=None):
        return (
            {"access_token": "a", "refresh_token": "second"} if form else {"token_endpoint": f"{url}/token"}
        )

    monkeypatch.setattr(login, "_ask", ask)
    login.log_in(needing("pelican://h/ns/sim/*", token_file=tmp_path / "jobs" / "token"), NullProgress())
    [kept] = (tmp_path / "home" / "config" / "crpipe").iterdir()
    assert {mode(path) for path in (kept, tmp_path / "jobs" / "token")} == {0o600}
    folders = (kept.parent, kept.parents[1], kept.parents[2], tmp_path / "jobs")
    assert {mode(path) for path in folders} == {0o700}


def test_keys_are_private_from_their_first_byte_and_never_those_of_an_old_file(tmp_path, umask):
    (tmp_path / "host.key").touch(0o644)
    before = (tmp_path / "host.key").open("rb")
    with before:
        write_certificates(tmp_path)
        write_issuer(tmp_path)
        assert before.read() == b""
    assert {mode(tmp_path / name) for name in ("host.key", "issuer.pem")} == {0o600}


def test_files_of_the_campaign_that_lock_and_prove_belong_to_their_user(tmp_path, umask):
    """Others may look, whatever the umask; who could write there could end a job, or skip a check."""
    for writer in (take, prove, download):
        writer(tmp_path)
    found = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert found == {"lease": 0o644, ".proofs.jsonl": 0o644, "a.parquet.part": 0o644}


@as_root
def test_another_user_can_neither_read_nor_replace_a_secret(shared, umask):
    write_secret(shared / "private" / "token", b"secret")
    write_secret(shared / "token", b"secret")
    for path in (shared / "private" / "token", shared / "token"):
        assert as_nobody("cat", path) != 0
        assert as_nobody("sh", "-c", 'echo > "$0"', path) != 0
        assert as_nobody("mv", "-f", "/etc/hostname", path) != 0
        assert path.read_bytes() == b"secret"
    assert as_nobody("cat", "/etc/hostname") == 0  # or nothing above proves anything


@as_root
def test_another_user_can_look_at_a_lease_but_not_write_to_it(shared, umask):
    with lease(shared, wait_s=0, say=str) as held:
        assert as_nobody("cat", shared / "lease") == 0
        assert as_nobody("sh", "-c", 'echo > "$0"', shared / "lease") != 0
        assert as_nobody("rm", "-f", shared / "lease") != 0
        held.check()


@as_root
def test_a_token_that_another_user_planted_is_not_used(shared, monkeypatch):
    """Neither a file of his, nor a link of his to a secret of ours, which would be sent to a server."""
    monkeypatch.delenv("BEARER_TOKEN", raising=False)
    monkeypatch.delenv("BEARER_TOKEN_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    place = shared / f"bt_u{os.getuid()}"
    write_secret(shared / "private" / "password", b"of-another-service")
    assert as_nobody("sh", "-c", 'echo planted > "$0"', place) == 0
    assert tokens.find("") is None
    place.unlink()
    assert as_nobody("ln", "-s", shared / "private" / "password", place) == 0
    assert tokens.find("") is None
    place.unlink()
    place.symlink_to(shared / "private" / "password")
    assert tokens.find("").text == "of-another-service"  # a link of one's own is one's own business


def test_a_token_with_a_second_name_is_not_used(tmp_path, monkeypatch):
    """Where the kernel allows it (fs.protected_hardlinks=0), another user makes hard links as well."""
    monkeypatch.delenv("BEARER_TOKEN", raising=False)
    monkeypatch.delenv("BEARER_TOKEN_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "password").write_text("of-another-service")
    os.link(tmp_path / "password", tmp_path / f"bt_u{os.getuid()}")
    assert tokens.find("") is None


@pytest.fixture
def servers(monkeypatch):
    """A federation's servers that are not started: only its files are made."""
    monkeypatch.setattr(origin, "is_installed", lambda: True)
    monkeypatch.setattr(origin, "check_reachable", lambda _: None)
    monkeypatch.setattr(origin, "_USER", "daemon")  # a user and a group of any Linux
    for name in ("start_origin", "_start_director", "_await", "warm"):
        monkeypatch.setattr(LoopbackFederation, name, lambda *_: None)


def test_the_files_of_a_federation_are_its_user_s_alone(shared, umask, servers):
    folder = shared / "federation"
    LoopbackFederation(folder).up()
    found = {path: mode(path) for path in (folder, *folder.rglob("*"))}
    assert len(found) > 15
    assert {path: bits for path, bits in found.items() if bits & 0o077} == {}
    after = os.umask(umask)
    assert after == umask


@pytest.mark.parametrize("kind", ["open to all", pytest.param("of another user", marks=as_root)])
def test_a_federation_is_not_made_in_a_folder_that_others_prepared(shared, servers, kind):
    folder = shared / "federation"
    folder.mkdir()
    if kind == "open to all":
        folder.chmod(0o777)
    else:
        os.chown(folder, 12345, 12345)
    with pytest.raises(SourceError, match="not yours, or anybody may write into it"):
        LoopbackFederation(folder).up()
    assert list(folder.iterdir()) == []


HOLD = (
    "import sys, time; from pathlib import Path; from crpipe.core.lease import lease\n"
    "with lease(Path(sys.argv[1]), wait_s=0, say=print): print('held', flush=True); time.sleep(60)"
)


def test_no_lock_or_temporary_file_is_made_outside_of_the_campaign(shared, monkeypatch):
    """Neither /tmp nor XDG_RUNTIME_DIR: there is nothing that another user could be faster with."""
    outside = shared / "outside"
    outside.mkdir()
    places = {name: str(outside) for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME", "XDG_CACHE_HOME")}
    inside = shared / "campaign"
    command = [sys.executable, "-B", "-c", HOLD, inside]
    with subprocess.Popen(command, env=os.environ | places, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        made = [path.name for path in itertools.chain(outside.rglob("*"), inside.rglob("*"))]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert made == ["lease"]
