import pytest

from crpipe.core.errors import ConfigError
from crpipe.source.uris import host_and_path, scheme_of


@pytest.mark.parametrize(
    ("uri", "scheme", "host", "path"),
    [
        ("pelican://osg-htc.org/a/*.parquet", "pelican", "osg-htc.org", "/a/*.parquet"),
        ("pelican://localhost:8443/a/f", "pelican", "localhost:8443", "/a/f"),
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
        ("s3://bucket/x", r"source\.tables\.geometry: s3:// is not known; use pelican://"),
        ("pelican:///x", r"source\.tables\.geometry: .* names no host; write pelican://host/path"),
        ("file://far/x", r"source\.tables\.geometry: .* names the host far"),
    ],
)
def test_a_wrong_uri_is_an_error_that_names_its_key(uri, message):
    with pytest.raises(ConfigError, match=message):
        host_and_path(uri, "source.tables.geometry")
