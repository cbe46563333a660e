import os

import pytest

from crpipe.campaign.raw_files import Entry, read_manifest
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.text import NullProgress
from crpipe.source import range_files
from crpipe.source.pelican.login import check_access
from crpipe.source.side_tables import check_table_uris
from crpipe.source.stage import stage_range
from crpipe.source.uris import SourcePattern
from opened import listed, opened
from told import Told


def test_a_manifest_holds_every_matching_file_sorted_with_its_size(configure, name, tree):
    entries = listed(configure(), name)
    assert [entry.path for entry in entries] == [f"part-{index:04d}.bin" for index in range(12)]
    assert [entry.size for entry in entries] == [1000 * index + 1 for index in range(12)]
    assert entries[3].uri == str(tree / str(name) / "part-0003.bin")
    assert entries[3].mtime.timestamp() == pytest.approx(
        (tree / str(name) / "part-0003.bin").stat().st_mtime, abs=1e-3
    )


def test_two_stars_list_all_directories_below(configure, name, tree):
    folder = tree / str(name)
    for below in ("b/deeper", "a"):
        (folder / below).mkdir(parents=True)
        (folder / below / "part-0000.bin").write_bytes(b"x")
        (folder / below / "notes.txt").write_bytes(b"x")
    config = configure(uri=f"{tree}/{{range}}/**/*.bin")
    paths = [entry.path for entry in listed(config, name)]
    assert paths[:2] == ["a/part-0000.bin", "b/deeper/part-0000.bin"]
    assert len(paths) == 14
    stage_range(opened(config), str(name), NullProgress())
    copies = config.paths().raw(str(name))
    assert sorted(str(path.relative_to(copies)) for path in copies.rglob("*.bin")) == sorted(paths)


def test_hidden_files_and_directories_are_listed_by_no_wildcard(configure, name, tree):
    folder = tree / str(name)
    for below in (".snapshot", "a"):
        (folder / below).mkdir()
        for file in ("part-0000.bin", "._part-0000.bin"):
            (folder / below / file).write_bytes(b"x")
    (folder / ".part.bin").write_bytes(b"x")
    paths = [entry.path for entry in listed(configure(uri=f"{tree}/{{range}}/**/*.bin"), name)]
    assert paths[0] == "a/part-0000.bin"
    assert not any("/." in f"/{path}" for path in paths)


def test_a_link_that_leads_back_ends_a_deep_listing(configure, name, tree):
    (tree / str(name) / "again").symlink_to(tree / str(name))
    with pytest.raises(ListingError, match="20 directories deep; does a link lead back"):
        listed(configure(uri=f"{tree}/{{range}}/**/*.bin"), name)


def test_a_file_uri_lists_the_same_as_a_path(configure, name, tree):
    by_uri = configure(uri=f"file://{tree}/{{range}}/*.bin")
    assert [entry.path for entry in listed(by_uri, name)][:1] == ["part-0000.bin"]


@pytest.mark.parametrize("pattern", ["*.h5", "part-9*.bin"])
def test_no_match_is_an_error_that_names_the_range(configure, name, tree, pattern):
    with pytest.raises(ListingError, match=f"range {name}: 0 files match"):
        listed(configure(uri=f"{tree}/{{range}}/{pattern}"), name)


def test_too_few_files_is_an_error(configure, name):
    with pytest.raises(ListingError, match=r"12 files match .* at least 13 needed"):
        listed(configure(min_files=13), name)


def test_a_missing_directory_is_an_error_that_names_it(configure, name, tmp_path):
    with pytest.raises(ListingError, match=rf"range {name}: .*/absent/{name} cannot be listed"):
        listed(configure(uri=f"{tmp_path}/absent/{{range}}/*.bin"), name)


def test_listing_again_is_silent_while_nothing_changed(configure, name):
    config = configure()
    assert listed(config, name) == listed(config, name)


def test_a_changed_source_is_reported_not_taken(configure, name, tree):
    config = configure()
    before = listed(config, name)
    folder = tree / str(name)
    (folder / "part-0001.bin").unlink()
    (folder / "part-0002.bin").write_bytes(b"longer than it was" * 1000)
    (folder / "part-0099.bin").write_bytes(b"new")
    os.utime(folder / "part-0004.bin", (1, 1))
    with pytest.raises(ListingError) as caught:
        listed(config, name)
    text = str(caught.value)
    assert "part-0001.bin: gone" in text
    assert "part-0002.bin: 2001 bytes before, 18000 now" in text
    assert "part-0004.bin: last written" in text
    assert "part-0099.bin: new" in text
    manifest = config.paths().manifest(str(name))
    assert read_manifest(manifest) == before
    manifest.unlink()
    assert len(listed(config, name)) == 12


def test_explicit_files_replace_a_listing(configure, name, tree, tmp_path):
    chosen = [tree / str(name) / f"part-{index:04d}.bin" for index in (7, 2)]
    text = "# chosen by hand\n\n" + "\n".join(map(str, chosen)) + "\n"
    (tmp_path / f"{name}.txt").write_text(text, "utf-8-sig")  # as editors of Windows do
    entries = listed(configure(files=f"{tmp_path}/{{range}}.txt"), name)
    assert [(entry.path, entry.size) for entry in entries] == [
        ("part-0002.bin", 2001),
        ("part-0007.bin", 7001),
    ]


def test_explicit_files_of_one_name_keep_their_directories(configure, name, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.parquet").write_bytes(folder.encode())
    (tmp_path / f"{name}.txt").write_text("\ufeffa/same.parquet\nb/same.parquet\n")  # as Windows writes it
    entries = listed(configure(files=f"{tmp_path}/{{range}}.txt"), name)
    assert [entry.path for entry in entries] == ["a/same.parquet", "b/same.parquet"]


def test_one_list_without_files_is_named_as_that(configure, name, tmp_path):
    (tmp_path / "all.txt").write_text("# none\n")
    config = configure(files=f"{tmp_path}/all.txt")
    for asks in (lambda: listed(config, name), lambda: check_access(config)):  # of `crpipe token`
        with pytest.raises(ConfigError, match="all.txt: the list names no file; write one on each line"):
            asks()


@pytest.mark.parametrize(
    ("text", "message"),
    [("absent.parquet\n", "absent.parquet"), ("x\nx\n", "twice"), ("/a\nhttps://h/a\n", "twice")],
)
def test_a_wrong_list_of_files_is_an_error(configure, name, tmp_path, text, message):
    (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises((ListingError, ConfigError), match=message):
        listed(configure(files=f"{tmp_path}/{{range}}.txt"), name)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/data/*/{range}/*.bin", "wildcard outside the file name"),
        ("/data/**/{range}/*.bin", "wildcard outside the file name"),
        ("/data/**/{range}.bin", r"has \*\* before a name with a placeholder; write \{range\} before"),
        ("/data/**/part_{number}.bin", r"has \*\* before a name with a placeholder"),
        ("/data/{range}/", "ends in a directory"),
        ("ftp://bucket/{range}/*.bin", "ftp:// is not known"),
        ("pelican:///{range}/*.bin", "names no host"),
        ("file://elsewhere/{range}/*.bin", "names the host elsewhere"),
        ("/data/{range}/part_{number}.h5", "exclude each other"),
        ("/data/{ranges}/*.parquet", r"\{ranges\} is not known; did you mean \{range\}"),
        ("/data/part_{num}.parquet", r"did you mean \{number\}"),
        ("/data/part_{number:6}.parquet", r"did you mean \{number:06\}"),
        ("/data/{number}/all.parquet", "outside the file name"),
        ("/data/part_{number}_*.parquet", "wildcard beside"),
        ("synthetic://air", "write synthetic:// alone"),
    ],
)
def test_an_impossible_uri_is_an_error(configure, name, uri, message):
    with pytest.raises(ConfigError, match=message):
        listed(configure(uri=uri), name)


@pytest.mark.parametrize(
    "uri", ["raw/{range}/*.bin", "raw/**/*.bin", "**/*.bin", "*.bin", "raw/part_{number}.bin"]
)
def test_characters_of_the_working_directory_are_no_pattern_of_a_relative_uri(tmp_path, monkeypatch, uri):
    folder = tmp_path / "muons [old] * {number} {x}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert SourcePattern(uri).whole().folder.startswith(str(folder))
    check_table_uris({"geometry": "raw/geometry.csv"})


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a.h5", "b.h5", "a.h5"], "range 0000000-0000999: a.h5: listed twice"),
        (["../a.h5"], r"'\.\./a\.h5' is outside the range's directory"),
        (["/a.h5"], "is outside"),
        (["x//a.h5"], "is outside"),
        (["x/./a.h5"], "is outside"),
        (["lease"], "crpipe needs this name"),
        (["a.part"], "crpipe needs this name"),
        (["a.part/b.h5"], "crpipe needs this name"),
        (["lease/b.h5"], "crpipe needs this name"),
        ([".listing"], "crpipe needs this name"),
        ([".proofs.jsonl"], "crpipe needs this name"),
    ],
)
def test_a_listing_that_cannot_be_trusted_is_refused(configure, name, monkeypatch, paths, message):
    entries = [Entry(path, f"/data/{path}", 1, None) for path in paths]
    monkeypatch.setattr(range_files, "entries_of", lambda *_: entries)
    config = configure()
    with pytest.raises(ListingError, match=message):
        listed(config, name)
    assert not config.paths().manifest(str(name)).exists()


def test_a_list_that_is_no_text_is_an_error(configure, name, tmp_path):
    (tmp_path / "all.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"all\.txt cannot be read \(it is not text\)"):
        listed(configure(files=f"{tmp_path}/all.txt"), name)
    (tmp_path / "all.txt").write_bytes("a\n".encode("utf-16-le"))
    with pytest.raises(ConfigError, match=r"all\.txt holds zero bytes: damaged, or UTF-16"):
        listed(configure(files=f"{tmp_path}/all.txt"), name)
    with pytest.raises(ConfigError, match=r"none\.txt cannot be read \(No such file"):
        listed(configure(files=f"{tmp_path}/none.txt"), name)


def test_files_that_are_left_out_are_counted_and_named(configure, name):
    told = Told()
    listed(configure(), name, told)
    assert f"{name}: 13 files listed, 12 match *.bin, 1 left out: README.txt" in told.lines


def test_directories_with_names_of_files_are_named_unless_their_files_are_listed(configure, name, tree):
    (tree / str(name) / "spark.bin").mkdir()
    (tree / str(name) / "spark.bin" / "part-0000.bin").write_bytes(b"x")
    told, deep = Told(), Told()
    listed(configure(), name, told)
    assert any("left out, because they are directories: 'spark.bin'" in line for line in told.lines)
    configure().paths().manifest(str(name)).unlink()
    assert len(listed(configure(uri=f"{tree}/{{range}}/**/*.bin"), name, deep)) == 13
    assert not any("directories" in line for line in deep.lines)


def test_a_range_with_far_fewer_files_than_the_others_is_reported(configure, name, tree):
    config = configure()
    for number in (1, 2, 3):
        other = f"{number:04d}000-{number:04d}999"
        (tree / other).mkdir()
        for index in range(30 if number < 3 else 3):
            (tree / other / f"{index}.bin").write_bytes(b"x")
        told = Told()
        listed(config, other, told)
    assert told.lines[-1].startswith(
        f"warning: {other}: 3 files, ranges have 30 as a rule; if the listing is not"
    )
    config.paths().manifest(other).unlink()  # the remedy, after the listing is whole again
    for index in range(30):
        (tree / other / f"{index}.bin").write_bytes(b"x")
    told = Told()
    listed(config, other, told)
    assert not any("warning" in line for line in told.lines)
