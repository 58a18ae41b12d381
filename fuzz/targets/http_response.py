"""What engines send: `ResponseReader` against a reader written from RFC 9112 alone."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from fuzz.naive.http1 import Incomplete, Refused, read_response
from fuzz.target import Target, kept_bytes, pieces
from headstart.errors import UpstreamError
from headstart.wire.http1 import ResponseHead
from headstart.wire.http1_responses import ResponseReader

_MAX_HEAD_BYTES = 2048
# The head's limit is looked at after each read, of 4 KB here, and the shortest fields weigh in
# memory forty times what they weigh on the wire.
_MAX_KEPT_BYTES = 40 * (_MAX_HEAD_BYTES + 4096)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One response, as far as it came.

    Attributes:
        head: values of the final head.
        body: what was given out.
        is_complete: it ended where its framing said.
        is_reusable: complete, and nothing came after it.
        is_refused: the reader gave it up.
    """

    head: tuple[object, ...] | None
    body: bytes
    is_complete: bool
    is_reusable: bool
    is_refused: bool


def check(data: bytes) -> Hashable:
    """Cutting changes nothing, and a response ends where the standard says."""
    kinds = []
    for method, ends in (("POST", False), ("POST", True), ("HEAD", True)):
        whole = _read([data], method, ends=ends)
        cut = _read(pieces(data), method, ends=ends)
        _compare_cut(whole, cut)
        kinds.append(_judge(whole, data, method, ends=ends))
    _check_next(data)
    return tuple(kinds)


def drive(data: bytes) -> int:
    """Read a long input in network-sized pieces; return what the reader then keeps."""
    reader = ResponseReader(_MAX_HEAD_BYTES)
    reader.expect("POST")
    try:
        for at in range(0, len(data), 4096):
            if reader.is_complete:
                if not reader.is_reusable:
                    break
                reader.expect("POST")
            reader.feed(data[at : at + 4096])
            reader.body.clear()
    except UpstreamError:
        pass
    return kept_bytes(reader)


def is_refused(data: bytes) -> bool:
    """Return whether the reader takes `data` for no response to a POST."""
    return _read([data], "POST", ends=True).is_refused


def _check_next(data: bytes) -> None:
    """What a reader keeps of one response changes nothing in how it reads the next."""
    try:
        _, end = read_response(data, "POST", is_ended=False)
    except (Incomplete, Refused):
        return
    reader = ResponseReader(_MAX_HEAD_BYTES)
    first, rest = _read([data[:end]], "POST", ends=False, reader=reader), data[end:]
    if not first.is_reusable or not rest:
        return
    for method in ("POST", "HEAD"):
        reader = ResponseReader(_MAX_HEAD_BYTES)
        _read([data[:end]], "POST", ends=False, reader=reader)
        after = _read([rest], method, ends=True, reader=reader)
        assert after == _read([rest], method, ends=True), "the former response changes the next"


def _read(
    parts: Iterable[bytes], method: str, *, ends: bool, reader: ResponseReader | None = None
) -> Outcome:
    reader = reader or ResponseReader(_MAX_HEAD_BYTES)
    reader.body.clear()
    reader.expect(method)
    is_refused = is_followed = False
    for part in parts:
        if reader.is_complete:
            is_followed = True  # whoever keeps the connection closes it at such bytes
            break
        try:
            reader.feed(part)
        except UpstreamError:
            is_refused = True
            break
    if ends and not is_refused and not reader.is_complete:
        reader.feed_eof()
    head = None if reader.head is None else _values(reader.head)
    is_reusable = reader.is_complete and reader.is_reusable and not is_followed
    return Outcome(head, b"".join(reader.body), reader.is_complete, is_reusable, is_refused)


def _values(head: ResponseHead) -> tuple[object, ...]:
    return head.status, head.reason, tuple(head.header.lines), head.content_length


def _compare_cut(whole: Outcome, cut: Outcome) -> None:
    assert cut.is_refused == whole.is_refused, "cutting the bytes changes whether they are refused"
    if whole.is_refused:
        return  # how much of a broken response came out before the fault depends on the pieces
    if whole.is_reusable and not cut.is_reusable:
        whole = replace(whole, is_reusable=False)  # the rest came after the response was taken
    assert cut == whole, "cutting the bytes changes the result"


def _judge(outcome: Outcome, data: bytes, method: str, *, ends: bool) -> Hashable:
    try:
        message, end = read_response(data, method, is_ended=ends)
    except Refused as refused:
        assert not outcome.is_complete, f"accepted against the standard: {refused}"
        return "refused", str(refused)
    except Incomplete:
        assert not outcome.is_complete, "ended before its end"
        return "incomplete", outcome.is_refused
    if outcome.is_refused:
        return "stricter", message.start[0]
    assert outcome.is_complete, "its end was not seen"
    assert outcome.head is not None
    assert outcome.head[0] == int(message.start[0])
    assert outcome.body == message.body, "another body"
    if outcome.is_reusable:
        # An empty line is no message, and may follow one.
        assert not data[end:].strip(b"\r\n"), "kept though bytes came after the response"
        assert message.is_keep_alive, "kept after `close`"
    return "complete", outcome.is_reusable, message.minor_version


TOKENS = (
    *(b"\r\n", b"\r", b"\n", b"\r\n\r\n", b" ", b"\t", b":", b"\x00", b"\x7f", b"\x80", b",", b";"),
    *(
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1",
    ),
    *(b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 304 N\r\n", b"HTTP/1.1 101 S\r\n", b"HTTP/1.1 099 x\r\n"),
    *(
        b"HTTP/1.1 200\r\n",
        b"HTTP/1.1 200 \r\n",
        b"HTTP/2 200\r\n",
        b"HTTP/1.1 2000 x\r\n",
        b"ICY ",
        b"RTSP/1.0 200 OK\r\n",
        b"ICE/1.0 200 OK\r\n",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n", b"+5"),
    *(
        b"Content-Length: 99999999999999999999\r\n",
        b"content-length:\t5 \r\n",
        b"Content-Length:\r\n",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"gzip, chunked", b"0x5"),
    *(
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Upgrade: x\r\n",
        b"Trailer: x\r\n",
    ),
    *(
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"5;a=b\r\n",
        b"ffffffffffffffffff\r\n",
    ),
)

TARGET = Target(
    "http_response", check, TOKENS, share=0.8, drive=drive, max_kept_bytes=_MAX_KEPT_BYTES
)
