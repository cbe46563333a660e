import pytest

from crpipe.config.loading import validate
from crpipe.source.uris import host_and_path, place_of


@pytest.mark.parametrize(
    ("uri", "scheme", "host", "folder", "pattern"),
    [
        (
            "pelican://osg-htc.org/a/{range}/*.parquet",
            "pelican",
            "osg-htc.org",
            "/a/0000000-0000999",
            "*.parquet",
        ),
        ("pelican://localhost:8443/a/{range}/f*", "pelican", "localhost:8443", "/a/0000000-0000999", "f*"),
        ("osdf:///a/{range}/*.h5", "osdf", "osg-htc.org", "/a/0000000-0000999", "*.h5"),
        ("file:///data/{range}/*", "file", "", "/data/0000000-0000999", "*"),
        ("/data/{range}/[ab]?.h5", "file", "", "/data/0000000-0000999", "[ab]?.h5"),
        ("/data/all/{range}-*.h5", "file", "", "/data/all", "0000000-0000999-*.h5"),
    ],
)
def test_every_kind_of_uri_finds_its_place(name, uri, scheme, host, folder, pattern):
    place = place_of(validate({"source": {"uri": uri}}), name)
    assert (place.scheme, place.host, place.folder, place.pattern) == (scheme, host, folder, pattern)


def test_a_relative_path_starts_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert host_and_path("data/x.parquet") == ("", str(tmp_path / "data/x.parquet"))
