import pytest

from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError
from crpipe.core.ranges import Range
from crpipe.source.uris import Kind, SourceOptions, SourcePattern, host_and_path, scheme_of
from named import SIMULATOR, SOURCE


@pytest.mark.parametrize(
    ("uri", "scheme", "host", "path"),
    [
        ("pelican://osg-htc.org/a/*.parquet", "pelican", "osg-htc.org", "/a/*.parquet"),
        ("pelican://localhost:8443/a/f", "pelican", "localhost:8443", "/a/f"),
        ("pelican://localhost:8443//a/f", "pelican", "localhost:8443", "/a/f"),
        ("https://[::1]:8443//a/f", "https", "[::1]:8443", "//a/f"),
        ("root://me@[::1]:1094//a/f", "root", "me@[::1]:1094", "/a/f"),
        ("osdf:///a/b.h5", "osdf", "osg-htc.org", "/a/b.h5"),
        ("osdf://a/b.h5", "osdf", "osg-htc.org", "/a/b.h5"),
        ("file:///data/x?.h5", "file", "", "/data/x?.h5"),
        ("file://localhost/data/a%20b", "file", "", "/data/a b"),
        ("/data/[ab]?.h5", "file", "", "/data/[ab]?.h5"),
    ],
)
def test_a_uri_has_a_scheme_a_host_and_a_path(uri, scheme, host, path):
    assert scheme_of(uri) == scheme
    assert host_and_path(uri) == (host, path)


def test_a_relative_path_starts_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert host_and_path("data/x.parquet") == ("", str(tmp_path / "data/x.parquet"))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", r"source\.tables\.geometry: not set"),
        ("ftp://bucket/x", r"source\.tables\.geometry: ftp:// is not known; use pelican://"),
        ("pelican:///x", r"source\.tables\.geometry: .* names no host; write pelican://host/path"),
        ("file://far/x", r"source\.tables\.geometry: .* names the host far"),
        (
            "http://[::1:80/x",
            r"http://\[::1:80: no host, or no port, has this name; write host, host:port or",
        ),
        ("https://::1/x", r"https://::1: no host, or no port, has this name"),
        ("root://door:abc//x", r"root://door:abc: no host, or no port, has this name"),
        ("pelican://door:70000/x", r"pelican://door:70000: no host, or no port, has this name"),
        ("pelican://me:secret@door/x", r"source\.tables\.geometry: pelican://door: write no password into"),
        ("root://me:secret@door//x", r"source\.tables\.geometry: root://door: write no password into"),
    ],
)
def test_a_wrong_uri_is_an_error_that_names_its_key(uri, message):
    with pytest.raises(ConfigError, match=message):
        host_and_path(uri, "source.tables.geometry")


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("synthetic://", Kind.SIMULATED),
        ("/data/{range}/*.parquet", Kind.RANGES),
        ("/data/all/{range}-*.h5", Kind.RANGES),
        ("data/batch_{number}.parquet", Kind.NUMBERS),
        ("pelican://h/d/batch_{number:06}.parquet", Kind.NUMBERS),
        ("/data/*.parquet", Kind.FLAT),
        ("pelican://h/dir/*.parquet", Kind.FLAT),
        ("one.parquet", Kind.FLAT),
    ],
)
def test_the_placeholder_tells_the_kind(uri, kind):
    assert SourcePattern(uri).kind is kind


@pytest.mark.parametrize(
    ("files", "kind"), [("lists/{range}.txt", Kind.RANGE_LISTS), ("all.txt", Kind.FLAT_LIST)]
)
def test_a_list_of_files_wins_over_a_uri(files, kind):
    assert SourcePattern("/data/{range}/*.parquet", files).kind is kind


@pytest.mark.parametrize(
    ("uri", "files", "message"),
    [
        ("", "list_{number}.txt", r"source\.files: .*\{number\} belongs into source\.uri"),
        ("", "list_{rang}.txt", r"source\.files: .*did you mean \{range\}"),
        ("synthetic://", "all.txt", "a simulator has no files but its own"),
    ],
)
def test_an_impossible_list_is_an_error(uri, files, message):
    with pytest.raises(ConfigError, match=message):
        SourcePattern(uri, files)


@pytest.mark.parametrize(
    ("uri", "scheme", "host", "folder", "pattern"),
    [
        ("pelican://h:1/a/{range}/f*", "pelican", "h:1", "/a/0000000-0000999", "f*"),
        ("osdf:///a/{range}/*.h5", "osdf", "osg-htc.org", "/a/0000000-0000999", "*.h5"),
        ("file:///data/{range}/part-????.h5", "file", "", "/data/0000000-0000999", "part-????.h5"),
        ("/data/all/{range}-*.h5", "file", "", "/data/all", "0000000-0000999-*.h5"),
    ],
)
def test_a_range_has_a_directory_and_a_pattern(name, uri, scheme, host, folder, pattern):
    place = SourcePattern(uri).location(name)
    assert (place.scheme, place.host, place.folder, place.pattern) == (scheme, host, folder, pattern)


@pytest.mark.parametrize(
    ("uri", "folder", "pattern"),
    [
        ("/data/run_{range}/sub/*.h5", "/data", "run_*"),
        ("/data/all/{range}-*.h5", "/data/all", "*-*.h5"),
        ("/data/batch_{number:06}.h5", "/data", "batch_*.h5"),
        ("/data/*.h5", "/data", "*.h5"),
    ],
)
def test_all_ranges_are_found_in_one_directory(uri, folder, pattern):
    place = SourcePattern(uri).whole()
    assert (place.folder, place.pattern) == (folder, pattern)


@pytest.mark.parametrize(
    ("uri", "name", "number"),
    [
        ("/d/batch_{number}.parquet", "batch_7.parquet", 7),
        ("/d/batch_{number}.parquet", "batch_0.parquet", 0),
        ("/d/batch_{number}.parquet", "batch_07.parquet", None),
        ("/d/batch_{number}.parquet", "batch_7.parquet.bak", None),
        ("/d/batch_{number}.parquet", "batch_7xparquet", None),
        ("/d/{number:06}.h5", "000007.h5", 7),
        ("/d/{number:06}.h5", "7.h5", None),
        ("/d/{number:06}.h5", "1234567.h5", 1234567),
        ("/d/r{number}_{number:03}.h5", "r7_007.h5", 7),
        ("/d/r{number}_{number:03}.h5", "r7_008.h5", None),
    ],
)
def test_a_file_name_holds_its_number(uri, name, number):
    pattern = SourcePattern(uri)
    assert pattern.number_of(name) == number
    if number is not None:
        assert pattern.file_name(number) == name


@pytest.mark.parametrize(
    ("uri", "name", "found"),
    [
        ("/d/{range}/*.h5", "0000000-0000999", Range(0, 999)),
        ("/d/run_{range}/x/*.h5", "run_0001000-0001999", Range(1000, 1999)),
        ("/d/run_{range}/x/*.h5", "old_0001000-0001999", None),
        ("/d/{range}-*.h5", "0001000-0001999-a.h5", Range(1000, 1999)),
        ("/d/{range}/*.h5", "0001999-0001000", None),
        ("/d/{range}/*.h5", "notes", None),
    ],
)
def test_a_directory_s_name_holds_its_range(uri, name, found):
    assert SourcePattern(uri).range_of(name) == found


def test_the_simulator_s_options_are_handed_down_only_where_it_is_used():
    config = validate({"source": {**SOURCE, "deadline_minutes": 2}, "seed": 7})
    options = SourceOptions.of(config)
    assert (options.simulator, options.seed, options.deadline_s) == (SIMULATOR, 7, 120)
    assert options.simulator_options == config.options("simulator")
    other = validate({"source": {**SOURCE, "uri": "/data/{range}/*.h5"}})
    assert SourceOptions.of(other).simulator_options == {}
