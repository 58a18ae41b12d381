"""`ResponseReader` and the serialisers of `http1`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import UpstreamError
from headstart.wire.http1 import (
    CONNECTION_FIELDS,
    HeaderSection,
    chunk,
    connection_options,
    request_head,
    response_head,
    simple_response,
)
from headstart.wire.http1_responses import ResponseReader


def read(raw: bytes, *, step: int | None = None, method: str = "GET") -> ResponseReader:
    reader = ResponseReader()
    reader.expect(method)
    for start in range(0, len(raw), step or len(raw)):
        reader.feed(raw[start : start + (step or len(raw))])
    return reader


@pytest.mark.parametrize("step", [None, 1])
def test_a_response_with_a_length(step):
    """Status, phrase, fields and body; then the connection can be used again."""
    raw = b"HTTP/1.1 404 Not There\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi"
    reader = read(raw, step=step)
    assert reader.head is not None
    assert (reader.head.status, reader.head.reason) == (404, b"Not There")
    assert reader.head.content_length == 2
    assert (b"x-a", b"X-A: b\r\n") in reader.head.header.lines
    assert b"".join(reader.body) == b"hi"
    assert reader.is_complete
    assert reader.is_reusable


@pytest.mark.parametrize("step", [None, 1])
def test_a_chunked_response_loses_framing_and_trailers(step):
    """The body is what is between the chunk sizes."""
    raw = (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n1;x\r\nc\r\n0\r\nT: 1\r\n\r\n"
    )
    reader = read(raw, step=step)
    assert b"".join(reader.body) == b"abc"
    assert reader.head is not None
    assert reader.head.content_length is None
    assert b"t" not in dict(reader.head.header.lines)
    assert reader.is_reusable


@pytest.mark.parametrize("step", [None, 1])
def test_interim_responses_are_skipped(step):
    """RFC 9110 §15.2: 100 and 103 are not the answer."""
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
    )
    reader = read(raw, step=step)
    assert reader.head is not None
    assert reader.head.status == 200
    assert reader.head.reason == b"OK"
    assert b"link" not in dict(reader.head.header.lines)
    assert reader.is_complete


def test_a_coding_in_http_1_0_forbids_reuse():
    """RFC 9112 §6.1: whoever sends it may mean another framing."""
    raw = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = read(raw + b"2\r\nhi\r\n0\r\n\r\n")
    assert reader.is_complete
    assert not reader.is_reusable


def test_the_answer_to_head_has_no_body():
    """Content-Length there says what GET would give; the connection is not reused."""
    reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", method="HEAD")
    assert reader.is_complete
    assert not reader.is_reusable


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_are_complete_with_their_head(status):
    """RFC 9112 §6.3."""
    reader = read(f"HTTP/1.1 {status} X\r\n\r\n".encode())
    assert reader.is_complete
    assert reader.is_reusable


def test_a_body_may_end_with_the_connection():
    """Neither length nor chunks: the end of input completes it."""
    reader = read(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert not reader.is_complete
    assert reader.feed_eof()
    assert b"".join(reader.body) == b"abc"
    assert not reader.is_reusable


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-",
    ],
)
def test_an_early_end_is_not_an_end(raw):
    """A short body is a failure, not a short answer."""
    assert not read(raw).feed_eof()


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\t\r\n\r\n0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 103 Early\r\nContent-Length: 2\r\n\r\nhi"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nho",
    ],
)
def test_what_is_not_a_response_is_an_upstream_error(raw):
    """Malformed heads, two framings, an unknown coding, another protocol, a body of a 103."""
    with pytest.raises(UpstreamError):
        read(raw)


def test_bytes_that_nobody_asked_for_are_an_error():
    """They would be taken for the next response."""
    reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(UpstreamError):
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_an_endless_head_is_an_error():
    """The reader keeps no more than its bound."""
    reader = ResponseReader(max_head_bytes=100)
    reader.expect("GET")
    with pytest.raises(UpstreamError):
        reader.feed(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200)


def test_connection_close_forbids_reuse():
    """And so does HTTP/1.0 without keep-alive."""
    assert not read(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    ).is_reusable
    assert not read(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").is_reusable
    assert not read(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\n"
        b"Content-Length: 0\r\n\r\n"
    ).is_reusable


def test_the_answer_to_head_has_no_body_whatever_the_engine_sends():
    """A client would take it for the next response."""
    reader = ResponseReader()
    reader.expect("HEAD")
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
    assert reader.is_complete
    assert not reader.is_reusable
    assert not reader.body


def test_one_reader_reads_one_response_after_another():
    """Nothing of the former shows in the next."""
    reader = read(b"HTTP/1.1 404 A\r\nX: y\r\nContent-Length: 1\r\n\r\na")
    reader.body.clear()
    reader.expect("GET")
    reader.feed(b"HTTP/1.1 200 B\r\nContent-Length: 1\r\n\r\nb")
    assert reader.head is not None
    assert (reader.head.status, reader.head.reason) == (200, b"B")
    assert b"x" not in dict(reader.head.header.lines)
    assert reader.body == [b"b"]


@given(st.data())
def test_any_cutting_gives_the_same_response(data):
    """How the bytes arrive changes nothing."""
    raw = (
        b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    )
    reader = ResponseReader()
    reader.expect("POST")
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, 30))
        reader.feed(raw[at : at + size])
        at += size
    assert reader.head is not None
    assert reader.head.status == 200
    assert b"".join(reader.body) == b"hello world"
    assert reader.is_complete


@given(st.binary(max_size=300))
def test_no_input_does_more_than_raise_an_upstream_error(raw):
    """Garbage from an engine is that engine's failure."""
    reader = ResponseReader()
    reader.expect("GET")
    try:
        reader.feed(b"HTTP/1.1 200 OK\r\n" + raw)
    except UpstreamError:
        return
    reader.feed_eof()


def test_fields_of_the_connection_are_not_forwarded():
    """RFC 9110 §7.6.1: the fixed ones and those that Connection names."""
    lines = [
        (b"connection", b"Connection: X-Hop, close\r\n"),
        (b"x-hop", b"X-Hop: 1\r\n"),
        (b"te", b"TE: trailers\r\n"),
        (b"keep-alive", b"Keep-Alive: timeout=5\r\n"),
        (b"transfer-encoding", b"Transfer-Encoding: chunked\r\n"),
        (b"x-end", b"X-End: 2\r\n"),
    ]
    fields = {b"connection": b"X-Hop, close"}
    assert HeaderSection(lines, fields).forwarded(CONNECTION_FIELDS) == b"X-End: 2\r\n"
    assert connection_options(fields) == {b"x-hop", b"close"}
    assert connection_options({}) == frozenset()


@pytest.mark.parametrize("option", [b"close", b"keep-alive", b"Keep-Alive", b"CLOSE"])
def test_plain_connection_options_name_no_field(option):
    """What nearly all clients send."""
    lines = [(b"x-a", b"X-A: 1\r\n")]
    section = HeaderSection(lines, {b"connection": option})
    assert section.forwarded(CONNECTION_FIELDS) == b"X-A: 1\r\n"


def test_heads_are_serialised():
    """Byte for byte."""
    assert request_head("POST", b"/a", b"x: y\r\n", 3) == (
        b"POST /a HTTP/1.1\r\nx: y\r\ncontent-length: 3\r\n\r\n"
    )
    assert request_head("GET", b"/a", b"", None) == b"GET /a HTTP/1.1\r\n\r\n"
    assert response_head(200, b"OK", b"x: y\r\n") == b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n"
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_a_response_of_our_own():
    """Length, type, and the announcement that the connection closes."""
    whole = simple_response(503, b"{}", extra=[(b"retry-after", b"1")], is_keep_alive=False)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"content-length: 2" in head
    assert b"retry-after: 1" in head
    assert b"connection: close" in head
    assert simple_response(200, b"{}", has_body=False).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "after",
    [b"HTTP/1.1 404 Not\r\nX: y\r\nContent-Length: 6\r\n\r\nstolen", b"garbage\r\n\r\n"],
)
@pytest.mark.parametrize("option", [b"", b"Connection: close\r\n"])
def test_what_comes_with_the_end_of_a_response_is_not_mixed_into_it(after, option):
    """The answer stands, and the connection is given up."""
    reader = read(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\nhi%b" % (option, after))
    assert reader.head is not None
    assert (reader.head.status, reader.head.reason) == (200, b"OK")
    assert reader.body == [b"hi"]
    assert reader.is_complete
    assert not reader.is_reusable
