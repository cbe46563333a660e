"""Lists of checksums: what is read, which row is a file's, and what copies get out of it."""

import csv
import hashlib
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.raw_files import Entry
from crpipe.core import checksums
from crpipe.core.errors import ConfigError, HostMemoryError, TransferError
from crpipe.core.text import NullProgress
from crpipe.source.checksum_lists import ChecksumList
from opened import opened, staged
from told import Told
from web_server import WebServer

DATA = b"123456789"  # for which the values of short checksums are published
VALUES = {
    "sha512": hashlib.sha512(DATA).hexdigest(),
    "sha256": hashlib.sha256(DATA).hexdigest(),
    "sha1": hashlib.sha1(DATA).hexdigest(),
    "md5": hashlib.md5(DATA).hexdigest(),
    "crc32c": "e3069283",
    "adler32": "091e01de",
    "crc32": "cbf43926",
}
SHA, MD5, ADLER = (VALUES[name] for name in ("sha256", "md5", "adler32"))


def entry(path="/data/R/a.h5"):
    return Entry(path.rpartition("/")[2], path, len(DATA), None)


def of(listed, path="/data/R/a.h5"):
    row = listed.of(entry(path))
    return row and (row.algorithm, row.value)


@pytest.mark.parametrize("algorithm", checksums.DIGITS)
def test_every_algorithm_is_computed(tmp_path, algorithm):
    (tmp_path / "x").write_bytes(DATA)
    assert checksums.of_file(tmp_path / "x", algorithm) == VALUES[algorithm]
    running = checksums.new(algorithm)
    for part in (DATA[:4], DATA[4:]):
        running.update(part)
    assert running.hexdigest() == VALUES[algorithm]


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("SHA256SUMS", f"{SHA}  a.h5\n", ("sha256", SHA)),
        ("list", f"\ufeff{SHA}  a.h5\n", ("sha256", SHA)),  # editors of Windows write such a mark
        ("excel.csv", f"\ufeffpath,sha256\na.h5,{SHA}\n", ("sha256", SHA)),
        ("list", f"{MD5.upper()} *./R/a.h5\n", ("md5", MD5)),
        ("list", f"# comment\n\n{SHA}\tR/a.h5\n", ("sha256", SHA)),
        ("bsd", f"SHA256 (R/a.h5) = {SHA}\n", ("sha256", SHA)),
        ("bsd", f"SHA2-256 (a.h5) = {SHA}\nMD5 (a.h5) = {MD5}\n", None),
        ("zenodo", f"md5:{MD5}  a.h5\n", ("md5", MD5)),
        (
            "record.json",
            f'{{"files": [{{"key": "a.h5", "checksum": "md5:{MD5}", "size": 9}}]}}',
            ("md5", MD5),
        ),
        (
            "r.json",
            f'{{"files": {{"entries": {{"a.h5": {{"key": "a.h5", "checksum": "md5:{MD5}"}}}}}}}}',
            ("md5", MD5),
        ),
        ("rows.json", f'[{{"path": "R/a.h5", "adler32": "{ADLER}"}}]', ("adler32", ADLER)),
        ("rucio", f"ad:{ADLER.lstrip('0')}  /pnfs/site/data/R/a.h5\n", ("adler32", ADLER)),
        ("dump.adler32", f"{ADLER} root://door//data/R/a.h5\n", ("adler32", ADLER)),
        ("list", f"{SHA}  https://door/data/R/%61.h5\n", ("sha256", SHA)),
        ("two", f"{MD5}  a.h5\n{SHA}  a.h5\n", ("sha256", SHA)),
        ("t.csv", f"name,adler32,md5\nR/a.h5,{ADLER},{MD5}\n", ("md5", MD5)),
        ("t.csv", f"path,adler32,md5\nR/a.h5,{ADLER},\n", ("adler32", ADLER)),
        ("t.tsv", f"uri\tchecksum\tsize\nroot://d//data/R/a.h5\tmd5:{MD5}\t7\n", ("md5", MD5)),
        ("t.csv", f"path,checksum,algorithm\na.h5,{ADLER},adler32\n", ("adler32", ADLER)),
        ("t.csv", f"\ufeffpath,md5\nR/a.h5,{MD5}\n", ("md5", MD5)),  # as Windows writes it
        ("md5sums", f"\ufeff{MD5}  a.h5\n", ("md5", MD5)),
    ],
)
def test_a_list_is_read(tmp_path, name, text, read):
    (tmp_path / name).write_text(text)
    if read is None:
        with pytest.raises(
            ConfigError, match=r"bsd, line 1: SHA2-256 is not known; sha512, sha256, sha1, md5"
        ):
            ChecksumList.read(tmp_path / name)
    else:
        assert of(ChecksumList.read(tmp_path / name)) == read


def test_a_parquet_table_is_read(tmp_path):
    rows = {"path": ["R/a.h5"], "checksum": [ADLER], "algorithm": ["adler32"]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    assert of(ChecksumList.read(tmp_path / "t.parquet")) == ("adler32", ADLER)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list", "", "holds no checksum; name what sha256sum prints"),
        ("list", "hello\n", r"list, line 1: 'hello' is no checksum and name; write HEX  NAME"),
        ("list", f"{SHA}\n", "line 1: .* is no checksum and name"),
        ("list", f"{SHA}  a\n{SHA[:-1]}  b\n", "line 2: 63 digits are of no known checksum"),
        ("list", f"{ADLER}  a\n", "8 digits could be crc32c or adler32 or crc32; write algorithm:HEX  NAME"),
        ("md5sums", f"{SHA}  a\n", "is no md5, which has 32 digits"),
        ("list", f"blake3:{SHA}  a\n", "line 1: blake3 is not known; sha512, "),
        (
            "list",
            f"{SHA}  a\n{SHA[::-1]}  ./a\n",
            "line 2: ./a is there twice, with different checksums",
        ),
        (
            "t.csv",
            f"what,md5\na,{MD5}\n",
            "line 2: no name or no checksum; a table needs",
        ),
        (
            "t.csv",
            "path,size\na,7\n",
            "line 2: .* a column checksum or one of sha512",
        ),
        ("t.parquet", "text", "is no Parquet file"),
        ("t.json", "[" * 100_000, r"cannot be read \(it is no JSON\)"),
        ("t.json", "text", r"cannot be read \(it is no JSON\)"),
        ("t.json", '{"message": "not found"}', "holds no checksum"),
        ("t.json", '[{"key": "a"}]', "line 1: no name or no checksum"),
    ],
)
def test_a_bad_list_is_one_sentence(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        ChecksumList.read(tmp_path / name)
    with pytest.raises(ConfigError, match=r"absent cannot be read \(No such file"):
        ChecksumList.read(tmp_path / "absent")


def test_a_table_that_the_machine_cannot_read_is_not_called_another_format(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_text("text")
    too_little = pa.ArrowMemoryError("malloc of size 4000 failed")
    monkeypatch.setattr(pq, "read_table", Mock(side_effect=too_little))
    with pytest.raises(HostMemoryError):
        ChecksumList.read(tmp_path / "t.parquet")


def test_the_longest_name_that_fits_is_a_file_s(tmp_path):
    rows = {"a.h5": "1", "R/a.h5": "2", "S/a.h5": "3", "/pnfs/x/data/T/a.h5": "4", "/pnfs/y/data/T/a.h5": "5"}
    (tmp_path / "list").write_text("".join(f"{value * 64}  {name}\n" for name, value in rows.items()))
    listed = ChecksumList.read(tmp_path / "list")
    values = [of(listed, f"/data/{folder}/a.h5")[1][0] for folder in "RSQ"]
    assert values == ["2", "3", "1"]
    assert of(listed, "/data/R/b.h5") is None
    assert of(listed, "/data/R/xa.h5") is None
    with pytest.raises(ConfigError, match=r"line 4 \(/pnfs/x.*line 5 .* both fit /data/T/a.h5"):
        of(listed, "/data/T/a.h5")


@pytest.fixture
def sums(tree, name, tmp_path):
    """Write a list of the tree's files, as sha256sum does in its directory."""

    def write(title="SHA256SUMS", change=None, *, only=slice(None)):
        files = sorted((tree / str(name)).glob("*.bin"))[only]
        rows = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        rows |= change or {}
        (tmp_path / title).write_text("".join(f"{value}  {file}\n" for file, value in rows.items()))
        return str(tmp_path / title)

    return write


@pytest.mark.parametrize("title", ["SHA256SUMS", "{range}.sha256"])
def test_local_files_are_compared_with_the_list(configure, name, sums, title):
    sums(title.replace("{range}", str(name)))
    config = configure(checksums=sums(title), require_checksum=True)
    rows = staged(config, name)
    assert len(rows) == 12
    assert {(row["verified"], row["algorithm"]) for row in rows.values()} == {("listed-checksum", "sha256")}


def test_a_file_that_is_not_the_listed_one_is_named(configure, name, sums):
    config = configure(checksums=sums(change={"part-0005.bin": "0" * 64}))
    with pytest.raises(TransferError, match=r"sha256 is .*, .*SUMS, line 6 \(part-0005.bin\) says 000"):
        staged(config, name)
    aside = configure(checksums=sums(change={"part-0005.bin": "0" * 64}), on_bad_file="quarantine")
    assert staged(aside, name)["part-0005.bin"]["state"] == "quarantined"


def test_files_that_the_list_lacks(configure, name, sums):
    text = rf"range {name}: .*SHA256SUMS lacks 2 of 12 files: part-0010.bin, part-0011.bin"
    with pytest.raises(ConfigError, match=f"{text}; add them, or write source.require_checksum: false"):
        staged(configure(checksums=sums(only=slice(10)), require_checksum=True), name)
    told = Told()
    rows = staged(configure(checksums=sums(only=slice(10))), name, told)
    assert [row["verified"] for row in rows.values()] == ["listed-checksum"] * 10 + ["copy-compare"] * 2
    assert "lacks 2 of 12 files" in str(told)
    with pytest.raises(ConfigError, match="lacks 12 of 12 files: .*; it begins with other.bin: a name"):
        staged(configure(checksums=sums(change={"other.bin": SHA}, only=slice(0))), name)


def test_copies_of_before_are_compared_with_a_list_that_came_later(configure, name, sums):
    staged(configure(copy_local=True), name)
    path = configure().paths().staged(str(name))
    path.unlink()
    told = Told()
    rows = staged(
        configure(checksums=sums(change={"part-0003.bin": "0" * 64}), on_bad_file="quarantine"), name, told
    )
    assert "11 of 12 files are here already, verified again" in str(told)
    assert [path for path, row in rows.items() if row["verified"] != "listed-checksum"] == ["part-0003.bin"]


def test_the_staged_table_of_one_campaign_is_the_list_of_another(configure, name, tmp_path):
    staged(configure(copy_local=True), name)
    table = configure().paths().staged(str(name)).rename(tmp_path / "kept.parquet")
    rows = staged(configure(checksums=str(table)), name)
    assert {(row["verified"], row["algorithm"]) for row in rows.values()} == {("listed-checksum", "crc32c")}


def test_a_server_without_checksums_is_verified_by_the_list(configure, name, tree, sums, tmp_path):
    with WebServer(tree / str(name)) as server:
        files = sorted(file.name for file in (tree / str(name)).glob("*.bin"))
        (tmp_path / f"{name}.txt").write_text("".join(f"{server.url}/{file}\n" for file in files))
        source = {"files": f"{tmp_path}/{{range}}.txt", "concurrency": 1, "attempts": 2}
        server.faults = [1.0, 1.0, 1.0, 0.5]
        rows = staged(configure(**source, checksums=sums()), name)
        assert {row["verified"] for row in rows.values()} == {"listed-checksum"}
        assert [path for method, path, part in server.seen if method == "GET" and part] == ["/part-0003.bin"]
        configure().paths().staged(str(name)).unlink()
        with pytest.raises(TransferError, match=r"says 000.*: bytes were changed on the way \(2 attempts\)"):
            staged(configure(**source, checksums=sums(change={"part-0005.bin": "0" * 64})), name)


def test_side_tables_are_compared_with_the_list(configure, tmp_path):
    from crpipe.campaign.records import read_tables
    from crpipe.source.side_tables import stage_tables

    (tmp_path / "geometry.csv").write_text("x\n1\n")
    value = hashlib.md5(b"x\n1\n").hexdigest()
    with (tmp_path / "sums.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["name", "md5"], ["geometry.csv", value]])
    config = configure(
        tables={"geometry": str(tmp_path / "geometry.csv")}, checksums=str(tmp_path / "sums.csv")
    )
    stage_tables(opened(config), NullProgress())
    assert read_tables(config.paths().tables())["geometry"].verified == "listed-checksum"
