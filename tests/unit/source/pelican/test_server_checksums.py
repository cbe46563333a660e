"""Which servers are asked for checksums, and what their answers mean."""

import asyncio

import pytest

from crpipe.source.pelican.download import Answer, DownloadError
from crpipe.source.pelican.transfer import ENOUGH, TRIES, ServerChecksums
from crpipe.source.retries import Failure, TemporaryFailure

GOOD = Answer(200, {"Digest": "crc32c=0000002a"})
NONE = Answer(200, {})
NAMED = ("crc32c", "0000002a")


class Servers:
    """Servers with one answer each, which can be changed; counts what they are asked."""

    def __init__(self, *, required=False, **answers):
        self.answers = answers
        self.asked = []
        self.checksums = ServerChecksums(required=required)

    def ask(self, path="f"):
        async def one(place):
            self.asked.append(place)
            if isinstance(self.answers[place], Exception):
                raise self.answers[place]
            return self.answers[place]

        found = asyncio.run(self.checksums.ask(list(self.answers), path, one))
        assert found is None or self.answers[found[2]] is GOOD
        return found and found[:2]

    def lasting(self, path="f"):
        """Ask until there is an outcome; return it with the number of tries that it took."""
        for tries in range(1, 10):
            try:
                return self.ask(path), tries
            except TemporaryFailure as error:
                if error.kind is not Failure.PROGRESS_MADE:
                    raise
        raise AssertionError


@pytest.mark.parametrize("cache", [GOOD, NONE, Answer(404, {}), Answer(500, {}), DownloadError("gone")])
def test_one_server_that_names_it_is_enough(cache):
    assert Servers(cache=cache, origin=GOOD).lasting()[0] == NAMED


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_refusals_switch_nothing_off(status):
    servers = Servers(only=Answer(status, {}))
    for number in range(2 * ENOUGH):
        found, tries = servers.lasting(f"f{number}")
        assert (found, tries) == (None, TRIES + 1 if number < ENOUGH else 1)
    servers.answers["only"] = GOOD
    assert servers.ask("another") == NAMED


@pytest.mark.parametrize("answer", [Answer(500, {}), DownloadError("gone")])
def test_without_any_answer_a_file_is_never_accepted(answer):
    servers = Servers(cache=answer, origin=answer)
    for number in range(10):
        with pytest.raises(TemporaryFailure) as caught:
            servers.ask(f"f{number % 3}")
        assert caught.value.kind is not Failure.PROGRESS_MADE


def test_servers_that_say_that_they_have_none_are_asked_now_and_then(monkeypatch):
    servers = Servers(cache=NONE, origin=Answer(405, {}))
    for number in range(20):
        assert servers.ask(f"f{number}") is None
    assert len(servers.asked) == 2 * (ENOUGH + 1)
    servers.answers["origin"] = GOOD
    monkeypatch.setattr("crpipe.source.pelican.transfer.AGAIN_S", 0.0)
    servers.checksums._rests.clear()
    assert servers.ask("later") == NAMED


def test_a_server_that_named_one_before_is_not_taken_for_one_without(monkeypatch):
    servers = Servers(only=GOOD)
    assert servers.ask() == NAMED
    servers.answers["only"] = NONE
    assert servers.lasting() == (None, TRIES + 1)


@pytest.mark.parametrize("origin", [Answer(403, {}), Answer(500, {}), DownloadError("no answer in time")])
def test_an_origin_that_does_not_say_is_left_out_where_the_cache_has_none(origin):
    servers = Servers(cache=NONE, origin=origin)
    assert servers.lasting("first") == (None, TRIES + 1)
    for number in range(20):
        servers.lasting(f"f{number}")
    asked = servers.asked.count("origin")
    servers.lasting("last")
    assert servers.asked.count("origin") == asked


@pytest.mark.parametrize("answer", [Answer(403, {}), Answer(500, {})])
def test_a_required_checksum_is_never_given_up(answer):
    servers = Servers(required=True, cache=NONE, origin=answer)
    for number in range(20):
        with pytest.raises(TemporaryFailure):
            servers.ask(f"f{number % 2}")
    assert servers.asked.count("cache") == servers.asked.count("origin") == 20
