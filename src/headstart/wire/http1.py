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
        lines: the header fields to forward from; trailers are dropped.
        fields: values of those fields that a gateway reads.
        body: whole, without transfer coding.
        minor_version: 0 or 1.
        is_keep_alive: the connection may serve another request.
    """

    __slots__ = (
        "body",
        "fields",
        "is_keep_alive",
        "lines",
        "method",
        "minor_version",
        "path",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        lines: FieldLines,
        fields: Fields,
        body: bytes = b"",
        *,
        minor_version: int = 1,
        is_keep_alive: bool = True,
    ) -> None:
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.lines = lines
        self.fields = fields
        self.body = body
        self.minor_version = minor_version
        self.is_keep_alive = is_keep_alive


class ResponseHead:
    """Status line and header fields of one final (not 1xx) response.

    Attributes:
        status: three digits, >= 200.
        reason: phrase as it came; may be empty.
        lines: the header fields to forward from.
        fields: values of those fields that a gateway reads.
        content_length: declared length; None if the body is chunked or ends with the connection.
    """

    __slots__ = ("content_length", "fields", "lines", "reason", "status")

    def __init__(
        self,
        status: int,
        reason: bytes,
        lines: FieldLines,
        fields: Fields,
        content_length: int | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.lines = lines
        self.fields = fields
        self.content_length = content_length


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


# What nearly every Connection field says; neither names another field.
_PLAIN_OPTIONS: Final = frozenset({b"close", b"keep-alive", b"Keep-Alive", b"Close"})


def connection_options(fields: Fields) -> frozenset[bytes]:
    """Return the lower-case options of the Connection fields."""
    value = fields.get(b"connection", b"")
    return frozenset(option.strip().lower() for option in value.split(b",")) - {b""}


def forwarded_lines(lines: FieldLines, fields: Fields, drop: frozenset[bytes]) -> list[bytes]:
    """Return the field lines to send on.

    Args:
        lines: as received.
        fields: of the same message, for its Connection options.
        drop: lower-case names to leave out besides those options; include `CONNECTION_FIELDS`.
    """
    connection = fields.get(b"connection")
    if connection is not None and connection not in _PLAIN_OPTIONS:
        drop = drop | connection_options(fields)
    return [line for name, line in lines if name not in drop]


def request_head(
    method: str, target: bytes, lines: Iterable[bytes], content_length: int | None
) -> bytes:
    """Serialise a request head.

    Args:
        method: e.g. `POST`.
        target: origin-form.
        lines: field lines with their CRLF.
        content_length: None for a request without a body.
    """
    length = b"" if content_length is None else b"content-length: %d\r\n" % content_length
    return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method.encode(), target, b"".join(lines), length)


def response_head(status: int, reason: bytes, lines: Iterable[bytes]) -> bytes:
    """Serialise a response head; `lines` are field lines with their CRLF."""
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, b"".join(lines))


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
    head = response_head(status, _REASONS.get(status, b""), lines)
    return head + body if has_body else head


def chunk(data: bytes) -> bytes:
    """Frame `data` (not empty: an empty chunk would end the body) as one chunk."""
    assert data
    return b"%x\r\n%b\r\n" % (len(data), data)
