"""Names that XRootD sends as they are, and who may reach the origin of a loopback federation."""

import contextlib
import socket
import ssl

import pytest

from crpipe.core.errors import TransferError

pytestmark = pytest.mark.federation
FOLDER = "0000000-0000999"


@pytest.fixture
def named(federation):
    """Serve files of these names from the open namespace."""
    folder = federation.data / "public" / "names" / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def write(*names):
        for name in names:
            (folder / name).write_bytes(b"PAR1" + name.encode() + b"PAR1")
            written.append(folder / name)
        federation.warm()
        return {"uri": federation.uri("/public/names/{range}/*.parquet"), "token_file": ""}

    yield write
    for file in written:
        file.unlink()


def test_names_with_signs_of_an_address_are_listed_and_copied(campaign, named):
    names = ["50%25.parquet", "plain.parquet", "x#1.parquet", "z 3.parquet"]
    source = named(*names, "README.txt")
    assert [entry.path for entry in campaign.list(**source)] == names
    assert f"{FOLDER}: 5 files listed, 4 match *.parquet, 1 left out: README.txt" in campaign.lines
    campaign.stage(**source)
    assert {file.name: file.read_bytes() for file in campaign.raw.glob("*.parquet")} == {
        name: b"PAR1" + name.encode() + b"PAR1" for name in names
    }


def test_a_name_that_the_server_itself_cannot_open_is_an_error_that_names_it(campaign, named):
    """XRootD takes what follows a question mark for options: it lists such a file and cannot send it."""
    source = named("y?2.parquet", "plain.parquet")
    assert [entry.path for entry in campaign.list(**source)] == ["plain.parquet", "y?2.parquet"]
    with pytest.raises(TransferError, match=r"y\?2\.parquet: not there any more \(status 404\)"):
        campaign.stage(**source)


def test_other_machines_cannot_reach_the_origin(federation):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 1))  # sends nothing: it only chooses an address of this machine
        except OSError:
            pytest.skip("this machine has no address but that of the loopback")
        own = probe.getsockname()[0]
    context = ssl.create_default_context(cafile=federation.certificate)
    context.check_hostname = False
    port = federation.topology.origin_port

    def answer(host):
        with (
            contextlib.suppress(ConnectionError, ssl.SSLError),
            socket.create_connection((host, port), timeout=10) as plain,
            context.wrap_socket(plain) as secure,
        ):
            secure.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return secure.recv(100)
        return b""

    assert answer("127.0.0.1").startswith(b"HTTP/1.1")
    assert answer(own) == b""
