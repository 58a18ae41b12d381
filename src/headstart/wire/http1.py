"""HTTP/1.1 messages as values, without sockets.

Theory of operation
-------------------
Three things have to be right in a proxy, and each has one home:

*Tokenising* is llhttp's job (through httptools, in `http1_parse`). It refuses bare LF, obsolete
line folding, whitespace before a colon, signs and lists in Content-Length, repeated
Content-Length, and Content-Length together with Transfer-Encoding. What it lets through and a
proxy must not (no Host, two Hosts, HTTP/0.9, a coding besides `chunked`, a coding in HTTP/1.0) the
reader refuses when the head is complete, before a byte of the body is looked at.

*Framing* is never forwarded. A request's body is read whole and sent with a Content-Length of our
own; a response's body is taken out of its framing and framed again for the client, so whatever an
upstream or a client smuggles into chunk extensions, trailers or competing length fields ends here.

*Header fields* are forwarded as they came, spelling and order included, except those that belong
to one connection: the fixed set below and whatever `Connection` names (RFC 9110 §7.6.1).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FieldLines = Sequence[tuple[bytes, bytes]]
"""Fields in the order they came: lower-case name, and the line as it came with its CRLF."""

Fields = Mapping[bytes, bytes]
"""Values by lower-case name; those of repeated fields joined by a comma (RFC 9110 §5.3)."""


LENGTH: Final = b"content-length"

# What nearly every Connection field says; neither names another field.
_PLAIN_OPTIONS: Final = frozenset({b"close", b"keep-alive", b"Keep-Alive", b"Close"})


def connection_options(fields: Fields) -> frozenset[bytes]:
    """Return the lower-case options of the Connection fields."""
    value = fields.get(b"connection", b"")
    return frozenset(option.strip().lower() for option in value.split(b",")) - {b""}


def says_close(fields: Fields) -> bool:
    """Return whether the connection ends: `close` is stronger than `keep-alive` (RFC 9112 §9.3)."""
    return b"connection" in fields and b"close" in connection_options(fields)


def joined(former: bytes, value: bytes) -> bytes:
    """Return the value of a field that came once more."""
    return b"%b, %b" % (former, value.strip())


class HeaderSection:
    """The header fields of a message, or of all those that have a known head (`known_head`).

    Attributes:
        lines: the fields to forward from.
        fields: values of those fields that a gateway reads.
    """

    __slots__ = ("_forwarded", "fields", "lines")

    def __init__(self, lines: FieldLines, fields: Fields) -> None:
        self.lines = lines
        self.fields = fields
        self._forwarded: dict[frozenset[bytes], bytes] = {}

    @classmethod
    def unframed(
        cls, lines: list[tuple[bytes, bytes]], fields: dict[bytes, bytes]
    ) -> "HeaderSection":
        """Return a section without Content-Length, whose work is done; takes it out of `fields`."""
        if fields.pop(LENGTH, None) is not None:
            lines = [line for line in lines if line[0] != LENGTH]
        return cls(lines, fields)

    def forwarded(self, drop: frozenset[bytes]) -> bytes:
        """Return the field lines to send on.

        Args:
            drop: lower-case names to leave out besides those that `Connection` names; include
                `CONNECTION_FIELDS`. What is returned is kept for each `drop`: a program has a
                handful of them.
        """
        found = self._forwarded.get(drop)
        if found is None:
            found = self._forwarded[drop] = self._without(drop)
        return found

    def _without(self, drop: frozenset[bytes]) -> bytes:
        connection = self.fields.get(b"connection")
        if connection is not None and connection not in _PLAIN_OPTIONS:
            drop = drop | connection_options(self.fields)
        return b"".join([line for name, line in self.lines if name not in drop])


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How much of the gateway one client connection may use, and for how long.

    Attributes:
        max_header_bytes: request line and header fields together; more is 431.
        max_body_bytes: body after removing the transfer coding; more is 413.
        head_s: from a request's first byte to the end of its head.
        body_s: from one piece of a request's body to the next.
        keep_alive_s: an idle connection is closed after this long.
        stall_s: a client that takes nothing of its response for this long is cut off.
    """

    max_header_bytes: int = 64 * 1024
    max_body_bytes: int = 32 * 1024 * 1024
    head_s: float = 30.0
    body_s: float = 60.0
    keep_alive_s: float = 120.0
    stall_s: float = 120.0


class Request:
    """One complete request.

    Attributes:
        method: upper case, e.g. `POST`.
        target: origin-form, query included, as bytes to send on.
        path: the target up to its query.
        header: its fields; trailers are dropped.
        body: whole, without transfer coding.
        minor_version: 0 or 1.
        is_keep_alive: the connection may serve another request.
    """

    __slots__ = ("body", "header", "is_keep_alive", "method", "minor_version", "path", "target")

    def __init__(
        self,
        method: str,
        target: bytes,
        header: HeaderSection,
        body: bytes = b"",
        *,
        minor_version: int = 1,
        is_keep_alive: bool = True,
    ) -> None:
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.header = header
        self.body = body
        self.minor_version = minor_version
        self.is_keep_alive = is_keep_alive

    def with_body(self, body: bytes) -> "Request":
        """Return a request that differs in its body only."""
        # Not by the constructor, which would cut the path out of the target again.
        other = Request.__new__(Request)
        other.method = self.method
        other.target = self.target
        other.path = self.path
        other.header = self.header
        other.body = body
        other.minor_version = self.minor_version
        other.is_keep_alive = self.is_keep_alive
        return other


class ResponseHead:
    """Status line and header fields of one final (not 1xx) response.

    Attributes:
        status: three digits, >= 200.
        reason: phrase as it came; may be empty.
        header: its fields.
        content_length: declared length; None if the body is chunked or ends with the connection.
        is_event_stream: the body is server-sent events that can be read.
        is_json: the body is JSON that can be read.
    """

    __slots__ = ("content_length", "header", "is_event_stream", "is_json", "reason", "status")

    def __init__(
        self, status: int, reason: bytes, header: HeaderSection, content_length: int | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.header = header
        self.content_length = content_length
        # Identity was asked for; what comes compressed nevertheless cannot be read.
        is_plain = header.fields.get(b"content-encoding", b"identity").lower() == b"identity"
        media = header.fields.get(b"content-type", b"").lower()
        self.is_event_stream = is_plain and media.startswith(b"text/event-stream")
        self.is_json = is_plain and media.startswith(b"application/json")

    def with_length(self, content_length: int) -> "ResponseHead":
        """Return a head that differs in its Content-Length only."""
        other = ResponseHead.__new__(ResponseHead)  # the media type need not be read again
        other.status = self.status
        other.reason = self.reason
        other.header = self.header
        other.content_length = content_length
        other.is_event_stream = self.is_event_stream
        other.is_json = self.is_json
        return other


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

# RFC 9110 §7.6.1, plus Trailer, because trailers are not forwarded. Content-Length is here because
# framing is ours on both sides.
CONNECTION_FIELDS: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


def request_head(method: str, target: bytes, lines: bytes, content_length: int | None) -> bytes:
    """Serialise a request head.

    Args:
        method: e.g. `POST`.
        target: origin-form.
        lines: field lines with their CRLF.
        content_length: None for a request without a body.
    """
    if content_length is None:
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target, lines)
    return b"%b %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (
        method.encode(),
        target,
        lines,
        content_length,
    )


def response_head(status: int, reason: bytes, lines: bytes) -> bytes:
    """Serialise a response head; `lines` are field lines with their CRLF."""
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines)


def simple_response(
    status: int,
    body: bytes,
    *,
    extra: Iterable[tuple[bytes, bytes]] = (),
    is_keep_alive: bool = True,
    has_body: bool = True,
) -> bytes:
    """Return a whole JSON response of the gateway's own.

    Args:
        status: HTTP status.
        body: JSON.
        extra: further header fields.
        is_keep_alive: False announces that the connection closes after this response.
        has_body: False for the answer to HEAD: the same head, no body.
    """
    lines = [b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)]
    lines.extend(b"%b: %b\r\n" % field for field in extra)
    if not is_keep_alive:
        lines.append(b"connection: close\r\n")
    head = response_head(status, _REASONS.get(status, b""), b"".join(lines))
    return head + body if has_body else head


def chunk(data: bytes) -> bytes:
    """Frame `data` (not empty: an empty chunk would end the body) as one chunk."""
    assert data
    return b"%x\r\n%b\r\n" % (len(data), data)
