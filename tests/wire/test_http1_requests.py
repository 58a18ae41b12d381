"""`RequestReader`: what it accepts and refuses, however the bytes are cut."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import BadRequest, BodyTooLarge, HeadersTooLarge
from headstart.wire.http1 import HttpLimits, Request
from headstart.wire.http1_parse import RequestReader, origin_form

HEAD = b"POST /v1/x?q=1 HTTP/1.1\r\nHost: a\r\n"
DEFAULTS = HttpLimits()
SMALL = HttpLimits(max_header_bytes=256, max_body_bytes=64)


def read(raw: bytes, *, step: int | None = None, limits: HttpLimits = DEFAULTS) -> RequestReader:
    reader = RequestReader(limits)
    for start in range(0, len(raw), step or len(raw) or 1):
        reader.feed(raw[start : start + (step or len(raw))])
    return reader


def values(request: Request) -> tuple[object, ...]:
    return (
        request.method,
        request.target,
        list(request.header.lines),
        dict(request.header.fields),
        request.body,
        request.minor_version,
        request.is_keep_alive,
    )


def outcome(reader: RequestReader) -> tuple[object, ...]:
    error = reader.error
    return [values(request) for request in reader.requests], type(error), str(error)


def test_a_request_keeps_its_field_lines_as_they_came():
    """Spelling, order and values survive; only the lower-case name is added."""
    (request,) = read(HEAD + b"X-Odd:  v \r\nx-odd: w\r\nContent-Length: 2\r\n\r\nhi").requests
    assert request.method == "POST"
    assert request.target == b"/v1/x?q=1"
    assert request.path == "/v1/x"
    assert request.body == b"hi"
    assert request.header.lines == [
        (b"host", b"Host: a\r\n"),
        (b"x-odd", b"X-Odd: v \r\n"),
        (b"x-odd", b"x-odd: w\r\n"),
    ]


def test_a_chunked_body_loses_its_framing_extensions_and_trailers():
    """What another parser might read differently does not get past this one."""
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n"
    (request,) = read(raw).requests
    assert request.body == b"abcde"
    assert b"x-t" not in dict(request.header.lines)


def test_pipelined_requests_come_out_in_order():
    """Two requests in one read are two requests."""
    reader = read(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert [request.path for request in reader.requests] == ["/1", "/2"]


@pytest.mark.parametrize(
    ("version", "connection", "keeps"),
    [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False), ("1.0", "keep-alive", True)],
)
def test_keep_alive_follows_version_and_connection(version, connection, keeps):
    """RFC 9112 §9.3."""
    field = f"Connection: {connection}\r\n" if connection else ""
    (request,) = read(f"GET / HTTP/{version}\r\nHost: a\r\n{field}\r\n".encode()).requests
    assert request.is_keep_alive is keeps
    assert request.minor_version == int(version[-1])


@pytest.mark.parametrize(
    "tail",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 3, 3\r\n\r\nabc",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: -3\r\n\r\nabc",
        b"Content-Length: 0x3\r\n\r\nabc",
        b"Content-Length: \r\n\r\nabc",
        b"Content-Length : 3\r\n\r\nabc",
        b"Transfer-Encoding: identity\r\n\r\nabc",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        b"Host: b\r\n\r\n",
        b"X: a\r\n folded\r\n\r\n",
        b"X: a\x00b\r\n\r\n",
        b"X: a\nY: b\r\n\r\n",
        b"X: a\rY: b\r\n\r\n",
    ],
)
def test_smuggling_inputs_are_refused(tail):
    """Anything that two parsers could frame differently is a 400."""
    reader = read(HEAD + tail)
    assert isinstance(reader.error, BadRequest)
    assert not reader.requests


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_is_not_http_1_1_is_refused(raw):
    """No Host, old or new versions, TLS on the plain port, tunnels."""
    reader = read(raw)
    assert isinstance(reader.error, BadRequest)
    assert not reader.requests


def test_a_host_with_a_comma_is_refused():
    """It could be two hosts joined by a parser in front."""
    assert isinstance(read(b"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n").error, BadRequest)


@pytest.mark.parametrize("host", ["a b", "a/b", "a@b", "a:b", "[::1", "::1", "h\u00f6st", "a:1:2"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_host_that_is_none_is_refused(host, version):
    """RFC 9112 §3.2: an invalid field value is a 400."""
    raw = f"GET / HTTP/{version}\r\nHost: {host}\r\n\r\n".encode()
    assert isinstance(read(raw).error, BadRequest)


@pytest.mark.parametrize(
    "host", ["", "a", "A_b.example-1.org:8080", "10.0.0.1:", "[::1]:80", "[fe80::1%25eth0]", "%61"]
)
def test_every_form_of_host_is_taken(host):
    """Names, addresses of both kinds, with a port and without."""
    reader = read(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert reader.error is None
    assert len(reader.requests) == 1


def test_a_target_with_a_fragment_is_refused():
    """An engine that cuts it off reads another path than was counted here."""
    assert isinstance(read(b"GET /v1/x#y HTTP/1.1\r\nHost: a\r\n\r\n").error, BadRequest)


def test_a_declared_body_beyond_the_limit_is_refused_before_it_is_read():
    """413 comes with the head."""
    reader = read(HEAD + b"Content-Length: 65\r\n\r\n", limits=SMALL)
    assert isinstance(reader.error, BodyTooLarge)
    assert "64" in str(reader.error)


def test_an_absurd_content_length_is_too_large_and_not_a_crash():
    """More digits than a machine word holds."""
    assert read(HEAD + b"Content-Length: " + b"9" * 19 + b"\r\n\r\n").error is not None


def test_a_chunked_body_beyond_the_limit_is_refused_when_it_gets_there():
    """413 without waiting for the last chunk."""
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"20\r\n" + b"x" * 32 + b"\r\n"
    assert read(raw + b"20\r\n" + b"x" * 32 + b"\r\n", limits=SMALL).error is None
    raw += b"20\r\n" + b"x" * 32 + b"\r\n" + b"1\r\nx\r\n"
    assert isinstance(read(raw, limits=SMALL).error, BodyTooLarge)


@pytest.mark.parametrize("step", [1, 50, 200])
@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 60 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 600,
        b"GET /" + b"y" * 600,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-A: b\r\n" * 60,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: " + b"y" * 600,
    ],
)
def test_a_header_section_beyond_the_limit_is_refused(raw, step):
    """431 for many fields, one endless field, an endless target, and endless trailers alike."""
    reader = read(raw, step=step, limits=SMALL)
    assert isinstance(reader.error, HeadersTooLarge)


def test_pipelining_does_not_hide_a_large_header_section():
    """The count starts anew with each request, and also in the middle of a read."""
    first = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    reader = read(first * 20, limits=SMALL)
    assert len(reader.requests) == 20
    large = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300 + b"\r\n\r\n"
    reader = read(first + large, limits=SMALL)
    assert len(reader.requests) == 1
    assert isinstance(reader.error, HeadersTooLarge)


def test_space_around_a_value_is_not_part_of_it():
    """RFC 9110 §5.5; the line goes on as it came."""
    (request,) = read(HEAD + b"Content-Length: 2 \t\r\nConnection:  close \r\n\r\nhi").requests
    assert request.header.fields[b"connection"] == b"close"
    assert request.body == b"hi"


def test_expect_continue_is_announced_until_the_body_comes():
    """RFC 9110 §10.1.1, and only for HTTP/1.1."""
    reader = read(HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert reader.wants_continue
    reader.feed(b"hi")
    assert not reader.wants_continue
    assert len(reader.requests) == 1
    old = read(b"POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert not old.wants_continue


@pytest.mark.parametrize("step", [None, 1, 3])
def test_an_upgrade_is_declined_and_the_request_served(step):
    """Java's client asks for h2c on each POST; body and next request must be read right."""
    raw = (
        HEAD
        + b"Connection: Upgrade, HTTP2-Settings, X-Hop\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
        b"X-Hop: 1\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
    )
    reader = read(raw, step=step)
    assert reader.error is None
    first, second = reader.requests
    assert first.body == b"abc"
    assert b"upgrade" not in dict(first.header.lines)
    assert first.header.fields[b"connection"] == b"x-hop"
    assert second.path == "/2"


@pytest.mark.parametrize("step", [None, 1, 9])
def test_a_fault_after_a_declined_upgrade_is_an_error_like_any_other(step):
    """The next request on that connection may be wrong too."""
    raw = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
    reader = read(raw + HEAD + b"X: " + b"y" * 300 + b"\r\n\r\n", step=step, limits=SMALL)
    assert [request.body for request in reader.requests] == [b"abc"]
    assert isinstance(reader.error, HeadersTooLarge)


def test_close_is_a_stronger_word_than_keep_alive():
    """RFC 9112 §9.3."""
    raw = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n"
    assert not read(raw).requests[0].is_keep_alive


def test_between_requests_nothing_has_arrived():
    """The idle deadline and the head's deadline tell the two states apart by this."""
    reader = RequestReader(HttpLimits())
    assert reader.is_between_requests
    reader.feed(b"GET /1 HT")
    assert not reader.is_between_requests
    reader.feed(b"TP/1.1\r\nHost: a\r\n\r\n")
    assert reader.is_between_requests


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/a?b", b"/a?b"),
        (b"http://h:1/a?b", b"/a?b"),
        (b"http://h", b"/"),
        (b"*", b"*"),
        (b"/x/http://h/a", b"/x/http://h/a"),
    ],
)
def test_origin_form(target, expected):
    """RFC 9112 §3.2.2."""
    assert origin_form(target) == expected


def test_nothing_is_read_after_an_error():
    """A connection whose framing is lost cannot be trusted again."""
    reader = read(b"nonsense\r\n\r\n")
    error = reader.error
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert reader.error is error
    assert not reader.requests


STREAM = (
    HEAD + b"Content-Length: 5\r\n\r\nhello"
    b"GET /2 HTTP/1.1\r\nHost: b\r\nX-Y: z\r\n\r\n"
    + HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    b"GET /4 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
)


def test_one_byte_at_a_time_gives_the_same_requests():
    """The plainest form of the property below."""
    assert outcome(read(STREAM, step=1)) == outcome(read(STREAM))


@given(st.data())
def test_any_cutting_gives_the_same_outcome(data):
    """Valid, truncated or damaged: how the bytes arrive changes nothing."""
    raw = bytearray(STREAM)
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    whole = RequestReader(HttpLimits())
    whole.feed(bytes(raw))
    cut = RequestReader(HttpLimits())
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, 40))
        cut.feed(bytes(raw[at : at + size]))
        at += size
    assert [values(r) for r in cut.requests] == [values(r) for r in whole.requests]
    assert type(cut.error) is type(whole.error)


@given(st.binary(max_size=400))
def test_no_input_crashes_the_reader(raw):
    """Garbage is an error value, never an exception."""
    reader = RequestReader(SMALL)
    reader.feed(raw)
    reader.feed(b"\r\n\r\n")


def test_a_body_in_tiny_chunks_weighs_little():
    """A list of its pieces would weigh thirty times the text."""
    reader = RequestReader(HttpLimits())
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunks = b"2\r\nab\r\n" * 10_000
    tracemalloc.start()
    try:
        for _ in range(10):
            reader.feed(chunks)
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.feed(b"0\r\n\r\n")
    assert reader.requests[0].body == b"ab" * 100_000
    assert weight < 2 * 200_000


def test_an_upgrade_in_http_1_0_is_ignored_and_the_version_kept():
    """RFC 9110 §7.8; the answer must not be chunked."""
    reader = RequestReader(HttpLimits())
    reader.feed(b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert reader.error is None
    assert reader.requests[0].minor_version == 0
