"""What clients send: `RequestReader` against a reader written from RFC 9112 alone."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise

from fuzz.naive.http1 import NaiveMessage, NaiveReading, read_requests
from fuzz.target import Target, kept_bytes, pieces
from headstart.errors import BadRequest, BodyTooLarge, HeadersTooLarge
from headstart.wire.http1 import HttpLimits, Request
from headstart.wire.http1_parse import RequestReader, origin_form

LIMITS = HttpLimits(max_header_bytes=512, max_body_bytes=256)
_DRIVE_LIMITS = HttpLimits(max_header_bytes=4096, max_body_bytes=16_384)
# Ends a head, fills the largest body, and is no request.
_END = b"\r\n\r\n" + b"\x00" * (LIMITS.max_body_bytes + LIMITS.max_header_bytes)
_DECLINED = frozenset({b"connection", b"upgrade", b"http2-settings"})


def check(data: bytes) -> Hashable:
    """Cutting changes nothing, and what is accepted can be read in one way only."""
    reader = _read([data])
    naive = read_requests(data)
    cut = _read(pieces(data) if len(naive.ends) < 2 or len(data) % 2 else _at(naive.ends, data))
    if _outcome(cut) != _outcome(reader):  # a head that is too large may be refused a read later
        for each in (reader, cut):
            each.feed(_END)
        assert _is_near_limit(data, cut) or _outcome(cut) == _outcome(reader), "cutting changes it"
    assert reader.error is None or isinstance(
        reader.error, BadRequest | BodyTooLarge | HeadersTooLarge
    ), f"undocumented {reader.error!r}"
    if naive.refusal:
        reader.feed(_END)  # the reader may see the fault a little later, but it has to see it
    _compare(_served(reader), naive, is_refused=reader.error is not None)
    for request in reader.requests:
        assert len(request.body) <= LIMITS.max_body_bytes
        assert sum(len(line) for _, line in request.header.lines) <= LIMITS.max_header_bytes
    return len(reader.requests), str(reader.error), naive.refusal


def _is_near_limit(data: bytes, cut: RequestReader) -> bool:
    # How many bytes a half-read line adds to its head depends a little on the pieces.
    return isinstance(cut.error, HeadersTooLarge) and len(data) > LIMITS.max_header_bytes * 3 // 4


def drive(data: bytes) -> int:
    """Read a long input in network-sized pieces; return what the reader then keeps."""
    reader = RequestReader(_DRIVE_LIMITS)
    for at in range(0, len(data), 4096):
        reader.feed(data[at : at + 4096])
        reader.requests.clear()
    return kept_bytes(reader)


def _read(parts: Iterable[bytes]) -> RequestReader:
    reader = RequestReader(LIMITS)
    for part in parts:
        reader.feed(part)
    return reader


def _outcome(reader: RequestReader) -> tuple[object, ...]:
    requests = [
        (
            r.method,
            r.target,
            r.header.lines,
            r.header.fields,
            r.body,
            r.minor_version,
            r.is_keep_alive,
        )
        for r in reader.requests
    ]
    if reader.error is not None:
        # A head that is too large and wrong as well is one or the other, as its pieces arrive.
        is_head = isinstance(reader.error, BadRequest | HeadersTooLarge)
        return requests, BadRequest if is_head else type(reader.error)
    state = (reader.is_in_body, reader.is_between_requests, reader.wants_continue)
    return requests, type(None), state


def _at(ends: list[int], data: bytes) -> Iterator[bytes]:
    # A request a read is how clients send, and what a reader may know from the former one.
    for start, end in pairwise([0, *ends, len(data)]):
        if start < end:
            yield data[start:end]


def _served(reader: RequestReader) -> list[Request]:
    # What was sent behind a request that ends the connection is never looked at.
    served = []
    for request in reader.requests:
        served.append(request)
        if not request.is_keep_alive:
            break
    return served


def _compare(requests: list[Request], naive: NaiveReading, *, is_refused: bool) -> None:
    # The product may refuse more than the standard asks for. It may not accept more, nor read
    # other requests out of the same bytes.
    assert len(requests) <= len(naive.messages), "a request that the standard does not see"
    for request, message in zip(requests, naive.messages, strict=False):
        _compare_one(request, message)
    if is_refused:
        return
    assert not naive.refusal, f"accepted against the standard: {naive.refusal}"
    assert len(requests) == len(naive.messages), "a complete request was not seen"


def _compare_one(request: Request, message: NaiveMessage) -> None:
    method, target = message.start
    assert request.method.encode() == method
    assert request.target == origin_form(target)
    assert request.minor_version == message.minor_version
    assert request.body == message.body, "another body"
    lines = request.header.lines
    fields = [(name, line.partition(b":")[2].strip(b" \t\r\n")) for name, line in lines]
    expected = [field for field in message.fields if field[0] != b"content-length"]
    if message.values(b"upgrade"):  # declined: the request goes on without asking for it
        fields = [field for field in fields if field[0] not in _DECLINED]
        expected = [field for field in expected if field[0] not in _DECLINED]
    assert fields == expected, "other fields"
    assert message.is_keep_alive or not request.is_keep_alive, "kept after `close`"


TOKENS = (
    *(b"\r\n", b"\r", b"\n", b"\r\n\r\n", b" ", b"\t", b":", b"\x00", b"\x0b", b"\x0c", b"\x7f"),
    *(
        b"\x80",
        b"\xff",
        b";",
        b",",
        b"0",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"a;x=y\r\n",
        b"+",
        b"-",
    ),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /v1/x HTTP/1.1\r\nHost: a\r\n", b"HTTP/1.0"),
    *(b"HTTP/1.1", b"HTTP/0.9", b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT a:1 "),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n"),
    *(b"Content-Length: 18446744073709551621\r\n", b"content-length:\t5 \r\n", b"0x5", b"5 "),
    *(b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:chunked\r\n", b"gzip, chunked"),
    *(b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding : chunked\r\n", b"chunked, "),
    *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: content-length\r\n"),
    *(b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: b\r\n"),
    *(b"X: a\r\n b\r\n", b" X: a\r\n", b": v\r\n", b"X\r\n", b"http://h/p", b"http://h", b"*"),
    *(b"ffffffffffffffff", b"00000000000000005", b"5;", b"5 ;a", b"5\n", b"fffffffffffffffff\r\n"),
)

TARGET = Target(
    "http_request",
    check,
    TOKENS,
    share=3.0,
    drive=drive,
    # The shortest fields weigh in memory forty times what they weigh on the wire.
    max_kept_bytes=40 * _DRIVE_LIMITS.max_header_bytes + 2 * _DRIVE_LIMITS.max_body_bytes,
)
