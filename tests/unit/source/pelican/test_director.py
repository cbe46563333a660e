import pytest

from crpipe.source.pelican.director import Namespace, _namespace
from crpipe.source.retries import Transient

HEADERS = {
    "Link": '<https://near:1/ns/f>; rel="duplicate"; pri=1, <https://far:2/ns/f>; rel="duplicate"; pri=2',
    "X-Pelican-Namespace": "namespace=/ns, require-token=true, collections-url=https://origin:3",
    "X-Pelican-Token-Generation": "issuer=https://issuer, strategy=OAuth2, base-path=/ns/base",
}


@pytest.fixture
def space():
    return _namespace(HEADERS, "/ns/f")


def test_a_director_s_answer_is_read_whole(space):
    assert space.servers == ["https://near:1", "https://far:2", "https://origin:3"]
    assert (space.prefix, space.origin, space.guarded) == ("/ns", "https://origin:3", True)
    assert (space.issuer, space.base_path) == ("https://issuer", "/ns/base")


def test_an_answer_without_servers_is_no_answer():
    with pytest.raises(Transient, match="names no server for /ns/f"):
        _namespace({"X-Pelican-Namespace": HEADERS["X-Pelican-Namespace"]}, "/ns/f")


def test_bad_servers_are_passed_over_until_none_is_left(space):
    assert space.best() == "https://near:1"
    assert space.bench("https://near:1")
    assert space.best() == "https://far:2"
    assert space.bench("https://far:2")
    assert not space.bench("https://origin:3")
    assert space.best() == "https://near:1"  # its failure is longest ago
    assert isinstance(space, Namespace)
