"""The table of faults: what a server does wrong, and what crpipe makes of it; docs/reliability.md counts.

Run as ``python tests/support/misbehaving_table.py`` to write the counts there again.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import misbehaviours as does
from crpipe.core.errors import AccessError, ListingError, OutageError, SourceError, TransferError
from misbehaving import DATA, Rule

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
ONE = "b.parquet"
SAME = "identical bytes"
BY_SERVER = "the bytes of the server that sent them, reported as verified against it only"
BY_SIZE = "identical bytes, reported as verified by size only"


def content(size, mark=b"x"):
    """What begins and ends as a Parquet file does."""
    return b"PAR1" + os.urandom(size - 8 - len(mark)) + mark + b"PAR1"


FILES = {
    name: content(3000 + place) for place, name in enumerate(["a.parquet", ONE, "c.parquet", "d.parquet"])
}
OTHER = content(len(FILES[ONE]), b"y")


@dataclass(frozen=True)
class Stops:
    """The outcome is this error, with these words in it."""

    error: type
    words: str

    def __str__(self):
        return f"{self.error.__name__} (exit {self.error.exit_code}): {self.words}"


@dataclass(frozen=True)
class OutlierSegment:
    """The outcome is that this file alone is set aside, for a reason with these words; the others arrive."""

    words: str

    def __str__(self):
        return f"identical bytes of all other files; this one is set aside: {self.words}"


@dataclass(frozen=True)
class Fault:
    """One row: ``rules`` are (roles, methods, ending, fault[, times]); ``made`` makes the servers."""

    group: str
    what: str
    rules: tuple
    outcome: object
    made: dict = field(default_factory=dict)
    source: dict = field(default_factory=dict)

    def script(self):
        """Fresh rules, which count for themselves."""
        rules = self.rules() if callable(self.rules) else self.rules
        return [
            Rule((roles,) if isinstance(roles, str) else roles, tuple(methods.split()), ending, fault, *times)
            for roles, methods, ending, fault, *times in rules
        ]


CACHES = ("near", "far")
ASIDE = {"on_bad_file": "quarantine"}
DARK = {"digests": ()}
DEADLINE = "not finished within source.deadline_minutes"
SHORT = {"deadline_minutes": 0.03}
ALL = ".parquet"


def fault_of(group, what, roles, methods, ending, fault, outcome, *times, **more):
    """A row with one rule."""
    return Fault(group, what, ((roles, methods, ending, fault, *times),), outcome, **more)


def transfer():
    """Copies that break on the way."""

    def row(what, roles, *rest, **more):
        return fault_of("transfer", what, roles, "GET", *rest, **more)

    for how, kind in (
        ("", {}),
        (" without a length", {"length": False}),
        (" between chunks", {"chunked": True}),
    ):
        yield row(f"one cache cuts each body{how}", "near", ALL, does.cut(0.5, **kind), SAME)
        yield row(
            f"every server cuts a file at its first byte{how}",
            DATA,
            ONE,
            does.cut(0.0, **kind),
            Stops(TransferError, "the connection ended early after 0 of 3001 bytes"),
        )
    yield row("a connection breaks once in the middle of each file", DATA, ALL, does.cut(0.5), SAME, 4)
    yield row("a cache sends flipped bits", "near", ALL, does.change(does.flip), SAME)
    yield row(
        "every server sends flipped bits",
        DATA,
        ONE,
        does.change(does.flip),
        Stops(TransferError, "bytes were changed on the way"),
    )
    yield row(
        "every server sends flipped bits of one file, quarantine",
        DATA,
        ONE,
        does.change(does.flip),
        OutlierSegment("bytes were changed on the way"),
        source=ASIDE,
    )
    yield row("a cache has a shorter file", "near", ONE, does.change(lambda body: body[:-9]), SAME)
    yield row(
        "every server has a shorter file",
        DATA,
        ONE,
        does.change(lambda body: body[:-9]),
        Stops(TransferError, "offers 2992 bytes, the manifest says 3001"),
    )
    yield row(
        "every server has a longer file",
        DATA,
        ONE,
        does.change(lambda body: body + b"more"),
        Stops(TransferError, "offers 3005 bytes, the manifest says 3001"),
    )
    yield row("an endless body", DATA, ONE, does.endless(), Stops(TransferError, "more bytes than the 3001"))
    yield row("a cache never ends its bodies", "near", ALL, does.endless(), SAME)
    yield row(
        "an error page of the right length, with status 200",
        DATA,
        ONE,
        does.change(does.web_page),
        Stops(TransferError, "bytes were changed on the way"),
    )
    yield row(
        "an error page of the right length, and no checksums",
        DATA,
        ONE,
        does.change(does.web_page),
        Stops(TransferError, "is no whole Parquet file"),
        made=DARK,
    )
    yield row(
        "a cache sends its error page, and no checksums",
        "near",
        ONE,
        does.change(does.web_page),
        BY_SIZE,
        made=DARK,
    )
    yield row(
        "another part of the file than the one asked for",
        DATA,
        ONE,
        does.header("Content-Range", "bytes 7-9/3001"),
        SAME,
    )
    yield row("status 204", DATA, ONE, does.body(b"", 204), Stops(TransferError, "answers 204"))
    yield row("status 416", DATA, ONE, does.status(416), Stops(TransferError, "holds a shorter file"))
    yield row(
        "garbage instead of an answer",
        DATA,
        ONE,
        does.raw(b"220 mail server\r\n\r\n"),
        Stops(TransferError, "the answer is not HTTP"),
    )
    yield row(
        "a header line of 100 kB",
        DATA,
        ONE,
        does.raw(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n"),
        Stops(TransferError, "the answer is not HTTP"),
    )
    yield row(
        "a length of 10^30",
        DATA,
        ONE,
        does.header("Content-Length", str(10**30)),
        Stops(TransferError, "the answer is not HTTP"),
    )
    yield row(
        "a length below zero",
        DATA,
        ONE,
        does.header("Content-Length", "-1"),
        Stops(TransferError, "the answer is not HTTP"),
    )
    yield row(
        "chunks that are none",
        DATA,
        ONE,
        does.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\nnonsense\r\n\r\n"),
        Stops(TransferError, "the answer is not HTTP"),
    )


def missing():
    """Servers without the file."""

    def row(what, roles, *rest, **more):
        return fault_of("missing file", what, roles, "GET HEAD", *rest, **more)

    yield row("status 404 at the first cache", "near", ONE, does.status(404), SAME)
    yield row("status 404 at both caches; the origin has it", CACHES, ONE, does.status(404), SAME)
    yield row(
        "status 404 everywhere",
        DATA,
        ONE,
        does.status(404),
        Stops(TransferError, "not there any more (status 404 from each of 3 servers)"),
    )
    yield row(
        "status 404 everywhere for one file, quarantine",
        DATA,
        ONE,
        does.status(404),
        OutlierSegment("not there any more"),
        source=ASIDE,
    )
    yield row(
        "status 404 everywhere for every file, quarantine",
        DATA,
        ALL,
        does.status(404),
        Stops(SourceError, "bad files, at most 2 may be set aside"),
        source=ASIDE,
    )
    yield row("status 404 everywhere, once", DATA, ONE, does.status(404), SAME, 3)
    yield Fault(
        "missing file",
        "a file on a server that the director names for this file alone",
        (
            (("near", "origin"), "GET HEAD", ONE, does.status(404)),
            ("director", "GET", "a.parquet", does.header("Link", near_alone)),
        ),
        BY_SERVER,
        source={"concurrency": 1},
    )
    yield row(
        "status 404 everywhere at first, quarantine", DATA, ONE, does.status(404), SAME, 6, source=ASIDE
    )
    yield row("status 410 at the first cache", "near", ONE, does.status(410), SAME)


def outage():
    """Servers that are busy, broken or gone."""

    def row(what, roles, *rest, **more):
        return fault_of("outage", what, roles, "GET HEAD", *rest, **more)

    for code in (429, 500, 502, 503, 504):
        yield row(f"status {code} at a cache", "near", ALL, does.status(code), SAME)
    for code in (429, 503):
        yield row(
            f"status {code} everywhere, quarantine",
            DATA,
            ALL,
            does.status(code),
            Stops(OutageError, f"answers {code}"),
            source=ASIDE,
        )
    yield row(
        "status 503 with Retry-After: 1, once at each server",
        DATA,
        ALL,
        does.status(503, Retry_After="1"),
        SAME,
        8,
        source={"attempts": 6},
    )
    yield row(
        "status 500 everywhere, quarantine",
        DATA,
        ALL,
        does.status(500),
        Stops(SourceError, "answers 500"),
        source=ASIDE,
    )
    yield row(
        "status 500 for one file alone, quarantine",
        DATA,
        ONE,
        does.status(500),
        OutlierSegment("answers 500"),
        source=ASIDE,
    )
    yield row(
        "bodies cut everywhere, quarantine",
        DATA,
        ALL,
        does.cut(0.0),
        Stops(SourceError, "bad files, at most 2"),
        source=ASIDE,
    )
    yield row(
        "one file left in the range, and its body is cut everywhere, quarantine",
        DATA,
        ALL,
        does.cut(0.0),
        Stops(SourceError, "at most 0 may be set aside"),
        source=ASIDE,
        made={"files": {ONE: FILES[ONE]}},
    )
    yield row(
        "bodies cut everywhere for a while, quarantine", DATA, ALL, does.cut(0.0), SAME, 9, source=ASIDE
    )
    yield row(
        "connections that end without an answer",
        DATA,
        ALL,
        does.close,
        Stops(TransferError, "the connection ended early"),
    )
    yield row(
        "connections that end without an answer, quarantine",
        DATA,
        ALL,
        does.close,
        Stops(SourceError, "bad files, at most 2"),
        source=ASIDE,
    )


def slow():
    """Answers that do not end."""
    row = partial(fault_of, "slow")
    yield row("a cache stalls in each body", "near", "GET", ALL, does.stall(0.5), SAME)
    yield row(
        "every server stalls in one file",
        DATA,
        "GET",
        ONE,
        does.stall(0.0),
        Stops(TransferError, "no answer in time"),
    )
    yield row(
        "every server stalls, quarantine",
        DATA,
        "GET",
        ALL,
        does.stall(0.0),
        Stops(SourceError, "bad files, at most 2"),
        source=ASIDE,
    )
    yield row("a cache answers nothing", "near", "GET HEAD", ALL, does.silence, SAME)
    yield row("a cache sends a byte now and then", "near", "GET", ALL, does.trickle(0.1), SAME)
    yield row(
        "every server sends a byte now and then",
        DATA,
        "GET",
        ALL,
        does.trickle(0.1),
        Stops(OutageError, DEADLINE),
        source=SHORT,
    )
    yield row(
        "headers that never end",
        DATA,
        "GET",
        ONE,
        does.slow_headers(0.1),
        Stops(OutageError, DEADLINE),
        source=SHORT,
    )
    yield row(
        "promises of an answer that never end",
        DATA,
        "GET",
        ONE,
        does.continues,
        Stops(OutageError, DEADLINE),
        source=SHORT,
    )
    yield row(
        "a listing that stalls",
        "origin",
        "PROPFIND",
        "",
        does.stall(0.5),
        Stops(ListingError, "the listing broke off (no answer in time)"),
    )
    yield row(
        "a listing that comes a byte now and then",
        "origin",
        "PROPFIND",
        "",
        does.trickle(0.1),
        Stops(ListingError, "less than 1 kB/s came"),
    )
    yield row(
        "a listing without an answer",
        "origin",
        "PROPFIND",
        "",
        does.silence,
        Stops(ListingError, "no answer in time"),
    )
    yield row(
        "a checksum without an answer",
        DATA,
        "HEAD",
        ONE,
        does.silence,
        Stops(OutageError, "no answer in time"),
    )


def listings():
    """Listings that are not what is there."""

    def row(what, *rest, **more):
        return fault_of("listing", what, "origin", "PROPFIND", "", *rest, **more)

    bad = partial(Stops, ListingError)
    yield row("half a listing", does.change(lambda body: body[: len(body) // 2]), bad("not whole XML"))
    yield row("half a listing, once", does.change(lambda body: body[: len(body) // 2]), SAME, 1)
    yield row("an empty answer", does.change(lambda _: b""), bad("not whole XML"))
    yield row(
        "an HTML page", does.change(lambda _: b"<html><body>hello</body></html>"), bad("not a WebDAV listing")
    )
    yield row("a listing without an entry", does.listing(lambda _: []), bad("0 files match"))
    yield row("a file twice", does.listing(lambda names: [*names, ONE]), bad("listed twice"))
    yield row(
        "the files of a directory inside (Depth: infinity)",
        does.listing(lambda names: [*names, "old/b.parquet"]),
        bad("which is not in it"),
    )
    yield row(
        "a file of another directory", does.listing(lambda _: ["../x.parquet"]), bad("which is not in it")
    )
    yield row(
        "a name with an escaped slash",
        does.change(lambda body: body.replace(b"b.parquet", b"x%2fy.parquet")),
        bad("which is not in it"),
    )
    yield row(
        "a name with a newline",
        does.listing(lambda names: [*names, "a\nb.parquet"]),
        bad("cannot be printed"),
    )
    yield row(
        "a name with a terminal escape",
        does.listing(lambda names: [*names, "\x1b[2J.parquet"]),
        bad("cannot be printed"),
    )
    yield row(
        "a name with a zero byte",
        does.listing(lambda names: [*names, "\x00.parquet"]),
        bad("cannot be printed"),
    )
    yield row(
        "a name of 300 bytes", does.listing(lambda _: ["x" * 292 + ".parquet"]), bad("250 bytes at most")
    )
    yield row(
        "a name that crpipe needs",
        does.listing(lambda _: ["lease"]),
        bad("crpipe needs this name"),
        source={"pattern": "*"},
    )
    yield row(
        "a name that is not UTF-8",
        does.change(lambda body: body.replace(b"b.parquet", b"%ff.parquet")),
        bad("utf-8"),
    )
    yield row(
        "a size of 10^30",
        does.change(lambda body: body.replace(b">3001<", b">1" + b"0" * 30 + b"<")),
        bad("impossible size"),
    )
    yield row("no size", does.change(lambda body: body.replace(b">3001<", b"><")), bad("names no size"))
    yield row("a time that is none", does.change(lambda body: body.replace(b"2026", b"9999999")), SAME)
    yield row("entities that grow (a billion laughs)", does.body(LAUGHS, 207), bad("not whole XML"))
    yield row("an endless listing", does.endless(b"<!-- -->" * 8192), bad("larger than"))
    yield row(
        "a whole listing without half of the files, once",
        does.listing(lambda names: names[::2]),
        bad("listed a second time, the source is not what"),
        1,
    )
    yield row("status 401", does.status(401), Stops(AccessError, "listing refused"))
    yield row("status 404", does.status(404), bad("no such directory"))
    yield row("status 404, once", does.status(404), SAME, 1)
    yield row("status 500", does.status(500), bad("answers 500"))
    yield row("status 500, once", does.status(500), SAME, 1)
    for how, escape in (("escaped", None), ("as they are", str)):
        names = {name: content(90) for name in ("x#1.parquet", "y?2.parquet", "z 3.parquet", "50%25.parquet")}
        yield Fault(
            "listing",
            f"names with #, ? and %, {how}",
            (),
            SAME,
            made={"files": FILES | names, **({"escape": escape} if escape else {})},
        )


LAUGHS = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "'
    + b"ha" * 50
    + b'">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 50) for n in range(8))
    + b']><D:multistatus xmlns:D="DAV:">&i;</D:multistatus>'
)


def director():
    """Discovery and director."""
    found = "/pelican-configuration"

    def row(what, *rest, **more):
        return fault_of("director", what, "director", *rest, **more)

    unclear = partial(Stops, ListingError)
    for what, answer in (
        ("nothing", b""),
        ("null", b"null"),
        ("[]", b"[]"),
        ("a page", b"<html>"),
        ("a number as the director", b'{"director_endpoint": 7}'),
        ("a director without https", b'{"director_endpoint": "http://localhost"}'),
    ):
        yield row(
            f"discovery answers {what}", "GET", found, does.body(answer), unclear("cannot be understood")
        )
    yield row("discovery is endless", "GET", found, does.endless(), unclear("cannot be understood"))
    yield row(
        "discovery is redirected to http",
        "GET",
        found,
        does.redirect("clear"),
        unclear("an address that is not https"),
    )
    yield row("discovery answers 404", "GET", found, does.status(404), unclear("discovery answers 404"))
    yield row("discovery fails three times", "GET", found, does.status(503), SAME, 3)
    yield row("discovery hangs", "GET", found, does.silence, Stops(OutageError, DEADLINE), source=SHORT)
    yield row(
        "discovery ends without an answer",
        "GET",
        found,
        does.close,
        Stops(OutageError, DEADLINE),
        source=SHORT,
    )
    yield row(
        "a director takes 5.5 s for a listing, within source.read_timeout_s",
        "PROPFIND",
        "",
        does.wait(5.5),
        SAME,
        source={"read_timeout_s": 8.0},
    )
    yield row("a director answers late", "GET PROPFIND", "", does.wait(0.25), SAME)
    yield row("a director answers 500 for a while", "GET", ALL, does.status(500), SAME, 3)
    yield row(
        "a director answers 500 for ever",
        "GET",
        ALL,
        does.status(500),
        Stops(OutageError, DEADLINE),
        source=SHORT,
    )
    yield row("a director answers 404 once for a listing", "PROPFIND", "", does.status(404), SAME, 1)
    yield row("a director answers 404 once for a file", "GET", ALL, does.status(404), SAME, 1)
    yield row("a director answers 404", "GET", ALL, does.status(404), Stops(OutageError, "nobody serves"))
    yield row(
        "a director that names no server",
        "GET",
        ALL,
        does.header("Link", None),
        Stops(OutageError, "names no server"),
    )
    yield row(
        "a director that names what is no address",
        "GET",
        ALL,
        does.header("Link", "<https://[bad/x>; pri=1"),
        Stops(OutageError, "names no server"),
    )
    yield row("a director that names one bad address of three", "GET", ALL, does.header("Link", three), SAME)
    yield row("a director that names a server that is not there", "GET", ALL, does.header("Link", gone), SAME)
    yield row(
        "a director that names no namespace",
        "GET PROPFIND",
        "",
        does.header("X-Pelican-Namespace", ""),
        unclear("names no server"),
    )
    yield row(
        "a director that names no server for listings",
        "PROPFIND",
        "",
        does.header("X-Pelican-Namespace", "namespace=/ns"),
        unclear("names no server that lists"),
    )
    yield row("several Link headers", "GET", ALL, several, SAME)


def near_alone(request):
    return f"<{request.federation.url('near')}/ns>; pri=1"


def three(request):
    good = "".join(f", <{request.federation.url(role)}/ns>; pri=2" for role in CACHES)
    return "<https://[bad/x>; pri=1" + good


def gone(request):
    return f"<https://localhost:9/ns>; pri=1, <{request.federation.url('near')}/ns>; pri=2"


async def several(request, reply):
    """Send one Link header for each server; the first one leads nowhere."""
    reply.headers["Link"] = (
        f"<https://localhost:9/x>; pri=1\r\nLink: <{request.federation.url('far')}/x>; pri=2"
    )
    await request.send(reply)


def checksum():
    """Checksums that are wrong, or not named."""

    def row(what, roles, *rest, **more):
        return fault_of("checksum", what, roles, "HEAD", *rest, **more)

    wrong = "crc32c=AAAAAA=="
    yield row(
        "the origin names none, and a cache a wrong checksum",
        "near",
        ALL,
        does.header("Digest", wrong),
        BY_SERVER,
        made={"digests": CACHES},
    )
    yield Fault(
        "checksum",
        "a cache keeps an old file of the same size, and names its checksum",
        (("near", "GET HEAD", ONE, does.replaced_by(OTHER)),),
        SAME,
    )
    yield Fault(
        "checksum",
        "every cache keeps an old file of the same size, and names its checksum",
        ((CACHES, "GET HEAD", ONE, does.replaced_by(OTHER)),),
        SAME,
        source={"attempts": 4},
    )
    yield Fault(
        "checksum",
        "a cache keeps an old file with its checksum, and no other server names one",
        (("near", "GET HEAD", ONE, does.replaced_by(OTHER)),),
        BY_SERVER,
        made={"digests": ("near",), "expected": {ONE: OTHER}},
    )
    yield Fault("checksum", "the origin names none, the caches do", (), BY_SERVER, made={"digests": CACHES})
    yield row(
        "the origin does not answer when asked, the caches do", "origin", ALL, does.status(500), BY_SERVER
    )
    yield row(
        "every server names a wrong checksum",
        DATA,
        ONE,
        does.header("Digest", wrong),
        Stops(TransferError, "the source says 00000000"),
    )
    yield row("a checksum that is none", "origin", ALL, does.header("Digest", "crc32c=?,md5"), BY_SERVER)
    yield Fault("checksum", "no server names a checksum", (), BY_SIZE, made=DARK)
    yield Fault(
        "checksum",
        "no server names a checksum, require_checksum",
        (),
        Stops(TransferError, "names no checksum, and source.require_checksum is on"),
        made=DARK,
        source={"require_checksum": True},
    )
    yield Fault("checksum", "the caches name none, the origin does", (), SAME, made={"digests": ("origin",)})
    for code in (400, 401, 403, 404):
        rules = (
            (DATA, "HEAD", ALL, does.status(code), 3),
            ("near", "GET", "d.parquet", does.change(does.flip)),
        )
        yield Fault(
            "checksum", f"three requests are answered {code}, then a cache sends flipped bits", rules, SAME
        )
    yield row("requests for checksums are refused (403) for ever", DATA, ALL, does.status(403), BY_SIZE)
    yield row(
        "requests for checksums fail (500) for ever",
        DATA,
        ALL,
        does.status(500),
        Stops(TransferError, "answers 500 when asked for a checksum"),
    )
    for what, fault in (
        ("refuses", does.status(403)),
        ("fails (500)", does.status(500)),
        ("hangs", does.silence),
    ):
        yield row(
            f"the caches have no checksums, and the origin {what}",
            "origin",
            ALL,
            fault,
            BY_SIZE,
            made={"digests": ()},
            source={"attempts": 3},
        )
    yield row(
        "the caches have no checksums, and the origin refuses, require_checksum",
        "origin",
        ALL,
        does.status(403),
        Stops(TransferError, "answers 403 when asked"),
        made=DARK,
        source={"require_checksum": True},
    )


def mixed():
    """A file that is replaced while it is copied, by one of the same size; no server names a checksum."""
    first, then = FILES[ONE], OTHER
    cases = (
        ("with another ETag", {"ETag": ('"1"', '"2"')}),
        (
            "with another Last-Modified",
            {"Last_Modified": ("Sat, 21 Nov 2026 03:34:57 GMT", "Sat, 21 Nov 2026 03:34:58 GMT")},
        ),
        ("and nothing shows it", {}),
    )
    for what, validators in cases:
        yield Fault(
            "replaced file",
            f"replaced after a cut, {what}",
            lambda validators=validators: ((DATA, "GET", ONE, does.replaced(first, then, **validators)),),
            "identical bytes of the new file, from one answer",
            made=DARK | {"expected": {ONE: then}},
        )
    yield Fault(
        "replaced file",
        "an old copy in a cache that cuts, a new one elsewhere",
        (("near", "GET", ONE, old_and_cut),),
        BY_SIZE,
        made=DARK,
    )
    yield Fault(
        "replaced file",
        "cut once, with the same ETag",
        lambda: ((DATA, "GET", ONE, tagged_cut, 1), (DATA, "GET", ONE, does.header("ETag", '"1"'))),
        BY_SIZE,
        made=DARK,
    )


async def old_and_cut(request, reply):
    reply.body = OTHER
    await does.cut(0.5)(request, reply)


async def tagged_cut(request, reply):
    reply.headers["ETag"] = '"1"'
    await does.cut(0.5)(request, reply)


def redirects():
    """Redirects and TLS."""
    row = partial(fault_of, "redirect, TLS")
    yield row("a cache sends the client on to the other one", "near", "GET", ALL, does.redirect("far"), SAME)
    yield row(
        "a redirect to itself",
        DATA,
        "GET",
        ONE,
        does.redirect("near"),
        Stops(TransferError, "too many redirects"),
    )
    yield row(
        "a redirect to http",
        DATA,
        "GET",
        ONE,
        does.redirect("clear"),
        Stops(TransferError, "redirects from https to http:"),
    )
    yield row("a redirect to http, by one cache", "near", "GET", ALL, does.redirect("clear"), SAME)
    yield row(
        "a redirect to nonsense",
        DATA,
        "GET",
        ONE,
        does.redirect("https://[bad"),
        Stops(OutageError, "does not look like a URL"),
    )
    yield row(
        "a listing that is redirected to http",
        "origin",
        "PROPFIND",
        "",
        does.redirect("clear"),
        Stops(ListingError, "redirects from https to http:"),
    )
    yield row(
        "a director that names a server without TLS for files that need a token",
        "director",
        "GET",
        ALL,
        does.header("Link", lambda request: f"<{request.federation.url('clear')}/ns>; pri=1"),
        SAME,
        made={"guarded": True},
    )
    yield row(
        "a director that names servers without TLS alone",
        "director",
        "GET PROPFIND",
        "",
        clear_alone,
        Stops(SourceError, "which is not https; the token is not sent"),
        made={"guarded": True},
    )
    yield Fault(
        "redirect, TLS",
        "an authority that is not trusted",
        (),
        Stops(ListingError, "certificate is not trusted"),
        made={"trusted": False},
    )
    yield row(
        "a director that names a port without TLS as https",
        "director",
        "GET",
        ALL,
        does.header("Link", no_tls),
        SAME,
    )


async def clear_alone(request, reply):
    url = request.federation.url("clear")
    reply.headers["Link"] = f"<{url}/ns>; pri=1"
    if "X-Pelican-Namespace" in reply.headers:
        reply.headers["X-Pelican-Namespace"] = f"namespace=/ns, require-token=true, collections-url={url}"
    await request.send(reply)


def no_tls(request):
    clear = request.federation.url("clear").replace("http:", "https:")
    return f"<{clear}/ns>; pri=1, <{request.federation.url('near')}/ns>; pri=2"


def refusals():
    """Servers that refuse the token."""

    def row(what, roles, *rest, **more):
        made = {"guarded": True}
        return fault_of("token", what, roles, "GET", *rest, made=made, **more)

    yield row("status 401 at a cache", "near", ALL, does.status(401), SAME)
    yield row("status 401 at each server, once", DATA, ONE, does.status(401), SAME, 3)
    yield row("status 403 at each server, once", DATA, ONE, does.status(403), SAME, 3)
    yield row(
        "status 401 everywhere, for a token that is valid",
        DATA,
        ONE,
        does.status(401),
        Stops(OutageError, "refused (status 401)"),
        source={"token": VALID},
    )
    yield row(
        "status 403 everywhere, for a token that is valid",
        DATA,
        ONE,
        does.status(403),
        Stops(AccessError, "refused (status 403)"),
        source={"token": VALID},
    )
    yield row(
        "status 401 everywhere, for a token of another scope",
        DATA,
        ONE,
        does.status(401),
        Stops(AccessError, "scope is storage.read:/other"),
        source={"token": {"scope": "storage.read:/other"}},
    )
    yield row(
        "status 401 everywhere, for a token that cannot be read",
        DATA,
        ONE,
        does.status(401),
        Stops(AccessError, "refused (status 401)"),
    )


VALID = {"scope": "storage.read:/", "exp": 4e9}

FAULTS = [
    row
    for group in (transfer, missing, outage, refusals, slow, listings, director, checksum, mixed, redirects)
    for row in group()
]


def table():
    """Count the outcomes of each group of faults, as Markdown."""
    heads = [
        "faults of",
        "",
        "identical bytes",
        "the same, with less proof",
        "one file set aside",
        "named error",
    ]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for group in dict.fromkeys(fault.group for fault in FAULTS):
        faults = [fault for fault in FAULTS if fault.group == group]
        kinds = Counter(kind_of(fault.outcome) for fault in faults)
        cells = [group, len(faults), kinds["same"], kinds["less proof"], kinds["aside"], kinds["error"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def kind_of(outcome):
    """Return which column of the table an outcome belongs to."""
    if isinstance(outcome, Stops | OutlierSegment):
        return "error" if isinstance(outcome, Stops) else "aside"
    return "less proof" if outcome in (BY_SERVER, BY_SIZE) else "same"


def section(page):
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(section(PAGE.read_text()))
