"""Files of a bucket, of an S3 server on loopback; what counts as a checksum of the other stores."""

import asyncio
import base64
import hashlib
import os
import socket
import time

import pytest

from crpipe.core.errors import (
    AccessError,
    ChangedError,
    ConfigError,
    ListingError,
    MissingExtra,
    OutageError,
    TransferError,
)
from crpipe.core.text import NullProgress
from crpipe.packs.depot import Depot
from crpipe.source import stores
from crpipe.source.range_files import SourceFiles
from crpipe.source.retries import Deadline, TemporaryFailure
from crpipe.source.source_checksum import ask_checksum
from crpipe.source.sources import open_second_place
from crpipe.source.stage import stage_range
from crpipe.source.stores import named_checksum
from crpipe.source.sync import check_place
from crpipe.source.uris import SourceOptions, SourcePattern, host_and_path, uri_of
from opened import listed, opened, staged
from s3_server import S3Server

FOLDER = "sim/0000000-0000999"
SIZES = {"a%20b.bin": 0, "one.bin": 300_000, "three.bin": 2_500_000}


@pytest.fixture(scope="module")
def bucket():
    names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        with S3Server() as server:
            server.content = {name: os.urandom(size) for name, size in SIZES.items()}
            for name, content in server.content.items():
                put(server, name, content)
            put(server, "README.txt", b"not a data file")
            yield server


def put(server, name, content):
    server.client.put_object(
        Bucket="bucket", Key=f"{FOLDER}/{name}", Body=content, ChecksumAlgorithm="SHA256"
    )


@pytest.fixture
def store(bucket, configure, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
    monkeypatch.setattr(stores, "PIECE", 1_000_000)
    bucket.composite.clear()
    bucket.untyped.clear()

    def make(**source):
        return configure(**{"uri": "s3://bucket/sim/{range}/*.bin", "attempts": 2} | source)

    return make


def test_a_range_of_a_bucket_is_listed_and_verified(store, bucket, name):
    rows = staged(store(), name)
    raw = store().paths().raw(str(name))
    assert {file: (raw / file).read_bytes() for file in rows} == bucket.content
    assert {(row["verified"], row["algorithm"]) for row in rows.values()} == {("source-checksum", "sha256")}
    assert all(row["mtime"] for row in rows.values())
    assert rows["three.bin"]["checksum"] == hashlib.sha256(bucket.content["three.bin"]).hexdigest()


@pytest.mark.parametrize("kind", ["composite", "untyped"])
def test_a_checksum_that_may_be_one_of_parts_is_none(store, bucket, name, kind):
    getattr(bucket, kind).add(f"{FOLDER}/one.bin")
    with pytest.raises(
        TransferError, match=r"one.bin: the source names no checksum; .* source.require_checksum: false"
    ):
        staged(store(), name)
    ways = {path: row["verified"] for path, row in staged(store(require_checksum=False), name).items()}
    assert ways == {name: "size-only" if name == "one.bin" else "source-checksum" for name in SIZES}


def test_a_copy_goes_on_where_a_killed_job_left_it(store, bucket, name):
    config = store()
    listed(config, name)
    raw = config.paths().raw(str(name))
    with pytest.raises(ZeroDivisionError):
        stage_range(opened(config), str(name), _Stopping(raw / "three.bin.part", bucket.content["three.bin"]))
    assert staged(config, name)["three.bin"]["verified"] == "source-checksum"
    assert (raw / "three.bin").read_bytes() == bucket.content["three.bin"]


def test_a_body_that_breaks_off_is_asked_for_again(store, bucket, name, monkeypatch):
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    bucket.cuts = 1
    staged(store(), name)
    raw = store().paths().raw(str(name))
    assert {file: (raw / file).read_bytes() for file in SIZES} == bucket.content


def test_the_deadline_does_not_wait_for_a_silent_store(store, name, monkeypatch):
    """Its library would ask again and again, and a stop would wait for that, too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        begin = time.monotonic()
        with pytest.raises(OutageError, match=r"not finished within source\.deadline_minutes"):
            listed(store(deadline_minutes=0.01, read_timeout_s=4), name)
        assert time.monotonic() - begin < 4


class _Stopping(NullProgress):
    """Leaves half of a copy, and stops the job at its first message."""

    def __init__(self, part, content):
        self.part, self.content = part, content

    def update(self, *_):
        self.part.write_bytes(self.content[:1_200_000])
        raise ZeroDivisionError


def test_an_object_that_was_written_again_is_refused(store, bucket, name):
    config = store()
    listed(config, name)
    put(bucket, "one.bin", b"x" * 7)
    try:
        with pytest.raises(ChangedError, match="one.bin: has 7 bytes, 300000 when it was listed"):
            stage_range(opened(config), str(name), NullProgress())
    finally:
        put(bucket, "one.bin", bucket.content["one.bin"])


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "s3://bucket/absent/{range}/*.bin",
            r"range .*: s3://bucket/absent/.*: not there .*; check source.uri",
        ),
        (
            "s3://no-bucket/{range}/*.bin",
            r"s3://no-bucket/.*: not there \(The specified bucket does not exist\)",
        ),
    ],
)
def test_what_is_not_there_is_named(store, name, uri, message):
    with pytest.raises(ListingError, match=message):
        listed(store(uri=uri), name)


def test_an_object_that_is_gone_since_its_listing_is_named_as_that(store, bucket, name):
    put(bucket, "soon.gone", b"x")
    config = store(uri="s3://bucket/sim/{range}/*.gone")
    listed(config, name)
    bucket.client.delete_object(Bucket="bucket", Key=f"{FOLDER}/soon.gone")
    with pytest.raises(
        TransferError, match=r"^s3://\S+: not there .*; restore what is damaged or gone, then"
    ):
        stage_range(opened(config), str(name), NullProgress())


def test_credentials_that_are_missing_are_told(store, name, monkeypatch, tmp_path):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AccessError, match="refused .*redentials.*; docs/pelican.md says where"):
        listed(store(), name)


@pytest.mark.parametrize(
    "keys",
    [
        "sso_start_url=https://x\nsso_region=us-east-1\nsso_account_id=1\nsso_role_name=r",
        "role_arn=arn:aws:iam::1:role/x\nsource_profile=other",
        None,  # there is no such profile
    ],
)
def test_a_profile_without_a_valid_login_is_no_missing_range(store, name, monkeypatch, tmp_path, keys):
    """The login that `aws sso login` makes 'does not exist': that was said of the files."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "config").write_text(f"[profile p]\n{keys}\n" if keys else "")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "p")
    with pytest.raises(AccessError, match="refused .*; docs/pelican.md says where credentials are found"):
        listed(store(), name)


def test_a_request_that_the_store_calls_bad_is_one_of_expired_credentials(store, bucket, name, monkeypatch):
    config = store()
    listed(config, name)
    monkeypatch.setattr(bucket, "status", "400 Bad Request")  # as S3 answers HEAD, without a body
    with pytest.raises(AccessError, match="Bad Request"):
        stage_range(opened(config), str(name), NullProgress())


def test_a_redirect_to_nowhere_is_named(store, bucket, name, monkeypatch):
    monkeypatch.setattr(bucket, "status", "301 Moved Permanently")
    with pytest.raises(ConfigError, match="redirected without end; correct the address, or AWS_ENDPOINT_URL"):
        listed(store(), name)


def test_a_library_that_is_missing_is_named(store, name):
    with pytest.raises(MissingExtra, match=r"gcsfs is needed to read gs:// .* pip install 'crpipe\[cloud\]'"):
        listed(store(uri="gs://bucket/{range}/*.bin"), name)


def test_the_checksum_of_one_object_is_asked_for(store, bucket):
    named = ask_checksum(SourceOptions(attempts=1), f"s3://bucket/{FOLDER}/one.bin")
    digest = hashlib.sha256(bucket.content["one.bin"]).hexdigest()
    assert str(named) == f"sha256:{digest}  s3://bucket/{FOLDER}/one.bin"


MD5 = hashlib.md5(b"x")


@pytest.mark.parametrize(
    ("scheme", "info", "named"),
    [
        ("gs", {"crc32c": "4waSgw==", "md5Hash": None, "etag": "CO=="}, ("crc32c", "e3069283")),
        ("gs", {"md5Hash": base64.b64encode(MD5.digest()).decode()}, ("md5", MD5.hexdigest())),
        ("gs", {"etag": MD5.hexdigest()}, None),
        ("abfs", {"content_settings": {"content_md5": bytearray(MD5.digest())}}, ("md5", MD5.hexdigest())),
        ("abfs", {"content_settings": {"content_md5": None}, "etag": "0x8D"}, None),
    ],
)
def test_only_what_names_its_algorithm_is_a_checksum(scheme, info, named):
    assert named_checksum(None, scheme, "bucket/x", info) == named


def test_addresses_of_stores_are_read_as_they_are_written():
    location = SourcePattern("root://door:1094//eos/{range}/*.h5").whole()
    assert (location.scheme, location.host, location.folder) == ("root", "door:1094", "/eos")
    assert host_and_path("root://door/eos/a%20b") == ("door", "/eos/a%20b")
    assert uri_of("root", "door", "/eos/a b") == "root://door//eos/a b"
    assert uri_of("s3", "bucket", "/a%b") == "s3://bucket/a%b"


def test_an_ipv6_address_is_one_host():
    pytest.importorskip("fsspec_xrootd", reason="pip install 'crpipe[remote]'")

    async def host():
        async with stores.FsspecSource(SourceOptions(), "root", "[::1]:1095") as source:
            return source._fs.hostid

    assert asyncio.run(host()) == "[::1]:1095"


def test_an_endpoint_without_a_scheme_is_named(store, bucket, name, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url.removeprefix("http://"))
    with pytest.raises(ConfigError, match=r"Invalid endpoint: 127\.0\.0\.1:.*; correct .*AWS_ENDPOINT_URL"):
        listed(store(), name)


def test_two_stars_list_what_lies_below_in_a_bucket(store, name):
    config = store(uri="s3://bucket/**/*.bin")
    listing = SourceFiles(SourcePattern.of(config), SourceOptions.of(config), Deadline(60, "listing"))
    assert listing.names() == [f"{FOLDER}/{file}" for file in sorted(SIZES)]


def test_keys_with_two_slashes_are_not_left_out_without_a_word(store, bucket):
    for key in ("twice/one.bin", "twice//two.bin", "twice/"):
        bucket.client.put_object(Bucket="bucket", Key=key, Body=b"" if key == "twice/" else b"some")
    config = store(uri="s3://bucket/twice/**/*.bin")
    deadline = Deadline(60, "listing")
    listing = SourceFiles(SourcePattern.of(config), SourceOptions.of(config), deadline)
    with pytest.raises(ListingError, match=r"s3://bucket/twice/ has keys .* second /, .* in source.files"):
        listing.names()
    bucket.client.delete_object(Bucket="bucket", Key="twice//two.bin")
    assert listing.names() == ["one.bin"]


def place(config, work):
    """Do something with a second place in the bucket."""

    async def opened_place():
        async with open_second_place(config) as second:
            return await work(second)

    return asyncio.run(opened_place())


@pytest.fixture
def second(store):
    config = store()
    return config.model_copy(update={"sync": config.sync.model_copy(update={"to": "s3://bucket/copy/"})})


@pytest.mark.parametrize("is_named", [True, False], ids=["named checksum", "read back"])
def test_a_bucket_as_a_second_place_verifies_what_arrives(second, bucket, tmp_path, is_named):
    file, name, pieces = tmp_path / "file", f"run {is_named}/file", []
    file.write_bytes(os.urandom(2_500_000))
    if not is_named:
        bucket.composite.add(f"copy/{name}")
    assert place(second, lambda there: there.size(name)) is None
    assert not place(second, lambda there: there.read(name, pieces.append))
    place(second, lambda there: there.send(file, name))
    assert place(second, lambda there: there.size(name)) == 2_500_000
    assert place(second, lambda there: there.read(name, pieces.append))
    assert b"".join(pieces) == file.read_bytes()


def test_what_changes_on_the_way_to_a_bucket_is_no_copy(second, bucket, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"whole")
    bucket.composite.add("copy/file")
    monkeypatch.setattr(stores.FsspecPlace, "_read", lambda *words: words[-1](b"other"))
    with pytest.raises(TemporaryFailure, match="copy/file: what arrived has another crc32c"):
        place(second, lambda there: there.send(file, "file"))


def test_a_state_that_broke_off_is_read_from_its_begin_again(store, bucket, tmp_path, monkeypatch):
    depot, state, said = Depot(store(attempts=3), "s3://bucket/broken"), tmp_path / "state.tar", []
    state.write_bytes(whole := os.urandom(250))
    depot.save_state("0abc", 7, state)
    read, broken = stores.FsspecPlace._read, set()

    def breaks(self, uri, start, size, write):
        kind = uri.rpartition("/")[2].partition("-")[0]
        if kind in broken:
            return read(self, uri, start, size, write)
        broken.add(kind)
        read(self, uri, start, size // 2, write)
        raise TemporaryFailure("the connection broke")

    monkeypatch.setattr(stores.FsspecPlace, "_read", breaks)
    assert depot.fetch_state("0abc", state, said.append)
    assert state.read_bytes() == whole
    assert broken == {"state", "states"}


def test_a_store_that_cannot_be_written_is_refused(store):
    config = store()
    root = config.model_copy(update={"sync": config.sync.model_copy(update={"to": "root://host//copy"})})
    with pytest.raises(ConfigError, match="a copy goes to a directory, pelican://host/path or s3://bucket"):
        check_place(root)


def test_the_newest_state_of_a_link_whose_hash_fits_comes_from_a_bucket(store, bucket, tmp_path):
    depot, state, said = Depot(store(), "s3://bucket/states"), tmp_path / "state.tar", []
    assert not depot.fetch_state("0abc", state, said.append)
    for step in (8, 9):
        state.write_bytes(b"step %d" % step)
        depot.save_state("0abc", step, state)
    assert depot.fetch_state("0abc", state, said.append)
    assert state.read_bytes() == b"step 9"
    newest = f"states/state-0abc-{9:010d}-{hashlib.sha256(b'step 9').hexdigest()}.tar"
    bucket.client.put_object(Bucket="bucket", Key=newest, Body=b"damaged")
    assert depot.fetch_state("0abc", state, said.append)
    assert state.read_bytes() == b"step 8"
    assert said == [f"warning: s3://bucket/{newest}: damaged; it is not used"]
