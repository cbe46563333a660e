import pytest

from crpipe.core.errors import SourceError
from crpipe.source.pelican.director import Namespace, read_namespace, root_of
from crpipe.source.retries import TemporaryFailure

LINKS = ['<https://near:1/ns/f>; rel="duplicate"; pri=1, <https://far:2/ns/f>; rel="duplicate"; pri=2']
HEADERS = {
    "X-Pelican-Namespace": "namespace=/ns, require-token=true, collections-url=https://origin:3",
    "X-Pelican-Token-Generation": "issuer=https://issuer, strategy=OAuth2, base-path=/ns/base",
}
OPEN = {"X-Pelican-Namespace": "namespace=/ns,require-token=false"}


@pytest.fixture
def space():
    return read_namespace(HEADERS, LINKS, "/ns/f")


def test_a_director_s_answer_is_read_whole(space):
    assert space.servers == ["https://near:1", "https://far:2", "https://origin:3"]
    assert (space.prefix, space.guarded) == ("/ns", True)
    assert (space.issuer, space.base_path) == ("https://issuer", "/ns/base")
    assert space.collections == "https://origin:3"


def test_several_link_headers_are_read_in_the_order_of_their_priority():
    links = [
        "<https://b/f>; pri=2",
        "<https://none/f>",
        "<https://a/f,with,commas>; pri=1, <https://c/f>; pri=3",
    ]
    assert read_namespace(OPEN, links, "/ns/f").servers == [
        "https://a",
        "https://b",
        "https://c",
        "https://none",
    ]


@pytest.mark.parametrize(
    "links", [[], [""], ["nonsense"], ["<https://[bad/f>; pri=1"], ["<ftp://a/f>"], ["<https://h:x>"]]
)
def test_an_answer_without_servers_is_no_answer(links):
    with pytest.raises(TemporaryFailure, match="names no server for /ns/f"):
        read_namespace(HEADERS, links, "/ns/f")


@pytest.mark.parametrize("about", ["", "namespace=", "require-token=true", "namespace=ns"])
def test_an_answer_without_a_namespace_is_no_answer(about):
    with pytest.raises(TemporaryFailure, match="names no server"):
        read_namespace({"X-Pelican-Namespace": about}, LINKS, "/ns/f")


def test_a_bad_address_is_left_out_and_the_others_are_used():
    found = read_namespace(OPEN, ["<https://[bad>; pri=1, <https://good:4/f>; pri=2"], "/ns/f")
    assert found.servers == ["https://good:4"]


def test_a_guarded_namespace_has_servers_with_tls_alone():
    mixed = ["<http://clear/f>; pri=1, <https://near:1/f>; pri=2"]
    assert read_namespace(HEADERS, mixed, "/ns/f").servers == ["https://near:1", "https://origin:3"]
    assert read_namespace(OPEN, mixed, "/ns/f").servers == ["http://clear", "https://near:1"]
    clear = {"X-Pelican-Namespace": "namespace=/ns, require-token=true, collections-url=http://origin"}
    with pytest.raises(SourceError, match="names http://origin, which is not https; the token is not sent"):
        read_namespace(clear, LINKS, "/ns/f")


def test_what_a_server_names_as_user_is_not_kept():
    assert root_of("https://me:secret@host:1/f") == "https://host:1"


def test_bad_servers_are_passed_over_until_none_is_left(space):
    assert space.pick_server() == "https://near:1"
    assert space.avoid("https://near:1")
    assert space.pick_server() == "https://far:2"
    assert space.avoid("https://far:2")
    assert not space.avoid("https://origin:3")
    assert space.pick_server() == "https://near:1"  # its failure is longest ago
    assert isinstance(space, Namespace)


def test_servers_without_the_file_are_passed_over(space):
    assert space.pick_server({"https://near:1"}) == "https://far:2"
    space.avoid("https://far:2")
    assert space.pick_server({"https://near:1"}) == "https://origin:3"
    with pytest.raises(LookupError):
        space.pick_server(set(space.servers))
