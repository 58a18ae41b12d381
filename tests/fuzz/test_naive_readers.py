"""The judges themselves, on cases whose answer the standards give."""

import pytest

from fuzz.naive import sse
from fuzz.naive.http1 import Incomplete, Refused, read_requests, read_response

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"


def test_requests_are_read_in_order():
    """Bodies by length and by chunks, and what follows them."""
    reading = read_requests(
        HEAD
        + b"Content-Length: 2\r\n\r\nhi"
        + HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: 1\r\n\r\n"
        + b"GET /y HTTP/1.0\r\n\r\nleft alone"
    )
    assert [message.body for message in reading.messages] == [b"hi", b"abc", b""]
    assert [message.is_keep_alive for message in reading.messages] == [True, True, False]
    assert reading.refusal == ""


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        (b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "Content-Length"),
        (b"Content-Length: +3\r\n\r\nabc", "Content-Length"),
        (b"Transfer-Encoding: gzip, chunked\r\n\r\n", "coding"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", "end of chunk"),
        (b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n", "chunk size"),
        (b"X : a\r\n\r\n", "field line"),
        (b"X: a\r\n b\r\n\r\n", "field line"),
        (b"X: a\nY: b\r\n\r\n", "line end"),
        (b"X: a\x00\r\n\r\n", "field line"),
        (b"Host: b\r\n\r\n", "Host"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(tail, why):
    """RFC 9112 §5 and §6."""
    reading = read_requests(HEAD + tail)
    assert not reading.messages
    assert why in reading.refusal


def test_the_beginning_of_a_request_is_neither():
    """Nothing to complain of, nothing complete."""
    for end in range(len(HEAD)):
        reading = read_requests(HEAD[:end])
        assert not reading.messages
        assert not reading.refusal


def test_a_response_ends_where_its_framing_says():
    """Interim ones are skipped; HEAD and 204 have no body."""
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi more"
    message, end = read_response(raw, "POST", is_ended=False)
    assert (message.body, raw[end:]) == (b"hi", b" more")
    message, end = read_response(raw, "HEAD", is_ended=False)
    assert (message.body, raw[end:]) == (b"", b"hi more")
    message, _ = read_response(b"HTTP/1.1 200 OK\r\n\r\nabc", "GET", is_ended=True)
    assert (message.body, message.is_keep_alive) == (b"abc", False)
    with pytest.raises(Incomplete):
        read_response(b"HTTP/1.1 200 OK\r\n\r\nabc", "GET", is_ended=False)
    with pytest.raises(Refused):
        read_response(b"HTTP/2 200\r\n\r\n", "GET", is_ended=True)


def test_events_end_with_an_empty_line_of_any_kind():
    """HTML Living Standard §9.2.6."""
    raw = b"data: a\n\ndata:b\r\n\r\nevent: x\rdata: c\rdata\r\r: comment"
    assert sse.events(raw) == [
        b"data: a\n\n",
        b"data:b\r\n\r\n",
        b"event: x\rdata: c\rdata\r\r",
        b": comment",
    ]
    assert [sse.data(event) for event in sse.events(raw)] == [b"a", b"b", b"c\n", None]
