"""`known_head`: a message is taken without the parser exactly if it is a kept head and its body."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import BodyTooLarge, HeadersTooLarge
from headstart.wire.http1 import HttpLimits, Request
from headstart.wire.http1_parse import RequestReader
from headstart.wire.http1_responses import ResponseReader
from headstart.wire.known_head import KnownHead, known_head

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nX-A: 1\r\n\r\n"
RESPONSE_HEAD = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: %d\r\nContent-Type: text/x\r\n\r\n"


def message(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


def kept() -> KnownHead:
    known = known_head(message(b"abc"), 3)
    assert known is not None
    return known


def values(request: Request) -> tuple[object, ...]:
    header = request.header
    return request.method, request.target, request.path, header.lines, header.fields, request.body


def read_alone(raw: bytes) -> list[tuple[object, ...]]:
    reader = RequestReader(HttpLimits())
    reader.feed(raw)
    assert reader.error is None
    return [values(request) for request in reader.requests]


@pytest.mark.parametrize("size", [1, 9, 10, 12345])
def test_only_the_number_and_the_body_may_differ(size):
    """Whatever the number of digits."""
    assert kept().body_of(message(b"x" * size)) == b"x" * size


@pytest.mark.parametrize(
    "other",
    [
        message(b"abcd")[:-1],
        message(b"abc") + b"d",
        message(b"abc") + message(b"abc"),
        message(b"abc").replace(b"X-A: 1", b"X-A: 2"),
        message(b"abc").replace(b"POST", b"PUT "),
        message(b"abc").replace(b": 3", b": +3"),
        message(b"abc").replace(b": 3", b": 3 "),
        message(b"abc").replace(b": 3", b": 3, 3"),
        message(b"abc").replace(b": 3", b": "),
        message(b"abc").replace(b": 3", b": \xb3"),
        message(b"abc").replace(b": 3\r\n", b": 3\r\nContent-Length: 3\r\n"),
        message(b"abc").replace(b": 3\r\n", b": 3\r\nTransfer-Encoding: chunked\r\n"),
        b"\r\n" + message(b"abc"),
        b"",
    ],
)
def test_anything_else_is_the_parsers(other):
    """Incomplete, more than one message, another head, or a number that is none."""
    assert kept().body_of(other) is None


@pytest.mark.parametrize(
    ("raw", "num_body_bytes"),
    [
        (message(b"abc") + b"P", 3),
        (message(b"abc") + b"c", 3),
        (b"\r\n\r\n" + message(b"abc"), 3),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0),
        (message(b"abc").replace(b"X-A: 1", b"X-A: " + b"y" * 5000), 3),
        (message(b"abc").replace(b": 3", b": 3 "), 3),
    ],
)
def test_what_is_more_or_less_than_one_simple_message_is_not_kept(raw, num_body_bytes):
    """Nor is a head that would cost an idle connection much memory."""
    assert known_head(raw, num_body_bytes) is None


bodies = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6)
heads = st.sampled_from(
    [
        HEAD,
        HEAD.replace(b"Length: ", b"Length:"),
        HEAD.replace(b"X-A: 1\r\n", b""),
        HEAD.replace(b"X-A: 1", b"Connection: x-b\r\nX-B: 2"),
        HEAD.replace(b"POST /v1/x", b"PUT /v1/y?z"),
        HEAD.replace(b"X-A: 1", b"Expect: 100-continue"),
    ]
)


@given(st.lists(st.tuples(heads, st.binary(min_size=1, max_size=30)), min_size=1, max_size=6))
def test_a_connection_reads_what_a_new_one_would(pairs):
    """Each read is one message; what came before makes no difference."""
    reader = RequestReader(HttpLimits())
    expected = []
    for head, body in pairs:
        raw = message(body, head)
        reader.feed(raw)
        expected += read_alone(raw)
        assert reader.is_between_requests
        assert not reader.wants_continue
    assert [values(request) for request in reader.requests] == expected


@given(bodies, st.data())
def test_cuts_that_are_not_messages_make_no_difference(pieces, data):
    """A read that is no whole message makes the reader forget the head before it goes on."""
    raw = b"".join(message(body) for body in pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)) | {0, len(raw)})
    reader = RequestReader(HttpLimits())
    for start, end in pairwise(cuts):
        reader.feed(raw[start:end])
    assert reader.error is None
    assert [values(request) for request in reader.requests] == read_alone(raw)


def test_a_head_whose_first_bytes_came_earlier_is_not_kept():
    """Else its rest alone would later pass for a request."""
    reader = RequestReader(HttpLimits())
    raw = message(b"abc")
    reader.feed(raw[:2])
    reader.feed(raw[2:])
    reader.feed(raw[2:])
    assert len(reader.requests) == 1
    assert reader.error is not None


def test_a_request_that_ends_the_connection_is_not_kept():
    """The parser refuses whatever follows it, the same request again included."""
    reader = RequestReader(HttpLimits())
    raw = message(b"abc", HEAD.replace(b"X-A: 1", b"Connection: close"))
    reader.feed(raw)
    reader.feed(raw)
    assert len(reader.requests) == 1


def test_limits_hold_for_known_heads():
    """A larger body is 413; a head near the limit is read anew, because its number may grow."""
    limits = HttpLimits(max_body_bytes=10)
    reader = RequestReader(limits)
    for size in (1, 10, 11):
        reader.feed(message(b"x" * size))
    assert len(reader.requests) == 2
    assert isinstance(reader.error, BodyTooLarge)
    reader = RequestReader(HttpLimits(max_header_bytes=42))  # this head counts 41
    reader.feed(message(b"x"))
    assert reader.error is None
    reader.feed(message(b"x" * 1000))
    assert isinstance(reader.error, HeadersTooLarge)


def test_two_requests_with_one_head_share_what_was_read():
    """That is the point: the fields are sent on without being joined again."""
    reader = RequestReader(HttpLimits())
    reader.feed(message(b"abc"))
    reader.feed(message(b"defg"))
    first, second = reader.requests
    assert first.header is second.header
    drop = frozenset({b"host"})
    assert first.header.forwarded(drop) is second.header.forwarded(drop) == b"X-A: 1\r\n"


@given(bodies)
def test_responses_are_read_alike_however_often_their_head_came(pieces):
    """Status, fields, length, body, and whether the connection can be used again."""
    reader = ResponseReader()
    for body in pieces:
        reader.expect("POST")
        reader.feed(message(body, RESPONSE_HEAD))
        assert reader.is_complete
        assert reader.is_reusable
        assert reader.head is not None
        assert (reader.head.status, reader.head.content_length) == (200, len(body))
        assert dict(reader.head.header.lines)[b"x-a"] == b"X-A: 1\r\n"
        assert b"".join(reader.body) == body
        reader.body.clear()


def test_an_answer_to_head_has_no_body_though_its_head_is_known():
    """The same bytes would be a body after GET."""
    reader = ResponseReader()
    for method in ("GET", "HEAD"):
        reader.expect(method)
        reader.feed(message(b"abc", RESPONSE_HEAD))
    assert reader.body == [b"abc"]


def test_a_response_that_ends_the_connection_is_not_kept():
    """There is no second one."""
    reader = ResponseReader()
    reader.expect("POST")
    closing = RESPONSE_HEAD.replace(b"X-A: 1", b"Connection: close")
    reader.feed(message(b"abc", closing))
    assert reader.is_complete
    assert not reader.is_reusable
