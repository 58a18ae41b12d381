"""Bytes to HTTP/1.1 messages: `RequestReader` for clients, `ResponseReader` for engines.

Both are fed whatever the network delivers, in any pieces, and give the same result for the same
bytes however they are cut. Neither does I/O. See `http1` for the theory of operation.
"""

from collections import deque
from typing import Final

import httptools

from headstart.errors import (
    BadRequest,
    BodyTooLarge,
    HeadersTooLarge,
    HeadstartError,
    UpstreamError,
)
from headstart.wire.http1 import (
    HttpLimits,
    Request,
    ResponseHead,
    connection_options,
)

_UPGRADE_FIELDS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})

# What a gateway reads of a request and of a response; all other fields only pass through.
_REQUEST_FIELDS: Final = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"x-api-key",
    }
)
_RESPONSE_FIELDS: Final = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"transfer-encoding",
    }
)


class RequestReader:
    """Collects a connection's requests in the order they arrive.

    Attributes:
        requests: complete requests that nobody has taken yet; the reader appends, its owner pops.
        error: why no more can be read; the connection is to be closed after answering it.
        is_in_body: a head is complete and its body is not.
        wants_continue: that head said `Expect: 100-continue` and no body byte has come; whoever
            answers it sets this to False.
    """

    __slots__ = (
        "_body",
        "_fields",
        "_head_bytes",
        "_is_quiet",
        "_limits",
        "_lines",
        "_max_head_bytes",
        "_parser",
        "_quiet_bytes",
        "_target",
        "error",
        "is_in_body",
        "requests",
        "wants_continue",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._max_head_bytes = limits.max_header_bytes
        self.requests: deque[Request] = deque()
        self.error: HeadstartError | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._quiet_bytes = 0
        self._reset()

    @property
    def is_between_requests(self) -> bool:
        """Nothing of a next request has arrived."""
        return not self._target

    def feed(self, data: bytes) -> None:
        """Take bytes from the network; what they complete appears in the attributes."""
        if self.error is not None:
            return
        self._is_quiet = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            self._decline_upgrade(data, pause.args[0])
        except httptools.HttpParserCallbackError as exc:
            cause = exc.__context__
            if not isinstance(cause, HeadstartError):
                raise
            self.error = cause
        except httptools.HttpParserError as exc:
            self.error = BadRequest(f"The request is not valid HTTP/1.1: {exc}.")
        if self._is_quiet:
            self._bound_quiet(len(data))
        else:
            self._quiet_bytes = 0

    def _bound_quiet(self, num_bytes: int) -> None:
        # The parser keeps a field line until its end has come, and says nothing meanwhile. Bytes
        # that neither complete anything nor belong to a body are such a line.
        self._quiet_bytes += num_bytes
        if self._quiet_bytes > self._max_head_bytes and self.error is None:
            self.error = self._headers_too_large()

    def _decline_upgrade(self, data: bytes, num_parsed: int) -> None:
        # RFC 9110 §7.8: a server may ignore Upgrade. llhttp stops after such a head, body or not,
        # because it expects another protocol to follow, so the head is read again without the
        # fields that asked for it. Java's HTTP client asks for h2c on every plain-text POST.
        method = self._parser.get_method()
        if method == b"CONNECT":
            self.error = BadRequest("CONNECT is not supported: send requests to a path.")
            return
        lines = [line for name, line in self._lines if name not in _UPGRADE_FIELDS]
        options = connection_options(self._fields) - _UPGRADE_FIELDS
        if options:
            lines.append(b"connection: %b\r\n" % b", ".join(sorted(options)))
        version = self._parser.get_http_version().encode("ascii")
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._target, version, b"".join(lines))
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        self.feed(head + data[num_parsed:])

    def _headers_too_large(self) -> HeadersTooLarge:
        limit = self._limits.max_header_bytes
        return HeadersTooLarge(f"The header section is larger than {limit} bytes; send less.")

    def _reset(self) -> None:
        self._target = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._fields: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._body: bytes | bytearray = b""
        self._is_quiet = False
        self.is_in_body = False
        self.wants_continue = False

    # Called by httptools, in this order.

    def on_url(self, part: bytes) -> None:
        """Take a piece of the request target."""
        self._target += part
        self._head_bytes += len(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one complete field line; a trailer is only counted."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._max_head_bytes:
            raise self._headers_too_large()
        self._is_quiet = False
        if self.is_in_body:
            return
        lowered = name.lower()
        self._lines.append((lowered, b"%b: %b\r\n" % (name, value)))
        if lowered in _REQUEST_FIELDS:
            if lowered in self._fields:
                value = _joined(self._fields[lowered], value)
            self._fields[lowered] = value.strip()

    def on_headers_complete(self) -> None:
        """Check what llhttp does not."""
        self._is_quiet = False
        fields = self._fields
        version = self._parser.get_http_version()
        if version == "1.1":
            # RFC 9112 §3.2: exactly one. A comma is in no host, but joins two fields.
            if b"," in fields.get(b"host", b","):
                raise BadRequest("The request needs exactly one Host field.")
        elif version != "1.0":
            raise BadRequest(f"HTTP/{version} is not supported; use HTTP/1.1.")
        length = fields.get(b"content-length")
        if length is not None:
            if len(length) > 18 or int(length) > self._limits.max_body_bytes:
                raise self._body_too_large()
        elif b"transfer-encoding" in fields:
            self._check_coding(fields[b"transfer-encoding"], version)
        if b"expect" in fields:  # RFC 9110 §10.1.1: to be ignored in HTTP/1.0
            is_continue = fields[b"expect"].lower() == b"100-continue"
            self.wants_continue = version == "1.1" and is_continue
        self.is_in_body = True

    def _check_coding(self, value: bytes, version: str) -> None:
        if version == "1.0":  # RFC 9112 §6.1: framing cannot be trusted
            raise BadRequest("Transfer-Encoding in an HTTP/1.0 request is not supported.")
        if value.lower() != b"chunked":
            raise BadRequest("The only supported transfer coding is `chunked`.")

    def _body_too_large(self) -> BodyTooLarge:
        limit = self._limits.max_body_bytes
        return BodyTooLarge(f"The body is larger than {limit} bytes; send a smaller one.")

    def on_body(self, part: bytes) -> None:
        """Take a piece of the body."""
        self._is_quiet = False
        self.wants_continue = False
        # Not a list of pieces: a million chunks of two bytes would weigh thirty times their text.
        body = self._body
        if not body:
            self._body = body = part
        elif isinstance(body, bytearray):
            body += part
        else:
            self._body = body = bytearray(body + part)
        if len(body) > self._limits.max_body_bytes:
            raise self._body_too_large()

    def on_chunk_header(self) -> None:
        """Note that the chunked coding makes progress."""
        self._is_quiet = False

    def on_message_complete(self) -> None:
        """Append the request and get ready for the next."""
        parser = self._parser
        if parser.should_upgrade():
            return  # `feed` is about to hear of it and reads the head again
        self.requests.append(
            Request(
                parser.get_method().decode("ascii"),
                origin_form(self._target),
                self._lines,
                self._fields,
                bytes(self._body),  # no copy if it came in one piece
                minor_version=1 if parser.get_http_version() == "1.1" else 0,
                is_keep_alive=parser.should_keep_alive(),
            )
        )
        self._reset()


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a request target, whichever form it came in.

    Source: RFC 9112 §3.2.2: servers accept the absolute form too.
    """
    if target[:1] == b"/":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or b"/" in scheme:
        return target
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"


def _joined(former: bytes, value: bytes) -> bytes:
    return b"%b, %b" % (former, value.strip())


class ResponseReader:
    """Reads responses off one connection to an engine, one at a time.

    `expect` announces the request whose response comes next; until it is called again, bytes
    after a complete response are a violation.

    Attributes:
        head: the final response's head, once complete.
        body: pieces of the body that nobody has taken yet; the owner takes and clears them.
        is_complete: the response has ended.
        is_reusable: after completion, the connection may carry another request.
    """

    __slots__ = (
        "_ends_with_connection",
        "_fields",
        "_head_bytes",
        "_is_head_request",
        "_lines",
        "_max_head_bytes",
        "_parser",
        "_reason",
        "body",
        "head",
        "is_complete",
        "is_reusable",
    )

    def __init__(self, max_head_bytes: int = 256 * 1024) -> None:
        self._max_head_bytes = max_head_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._is_head_request = False
        self.body: list[bytes] = []
        self._reset()
        self.is_complete = True

    def _reset(self) -> None:
        self.head: ResponseHead | None = None
        self.is_complete = False
        self.is_reusable = False
        self._ends_with_connection = False
        self._head_bytes = 0
        self._forget_head()

    def _forget_head(self) -> None:
        self._reason = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._fields: dict[bytes, bytes] = {}

    def expect(self, method: str) -> None:
        """Get ready for the response to a request with `method`."""
        assert self.is_complete
        self._is_head_request = method == "HEAD"
        self._reset()

    def feed(self, data: bytes) -> None:
        """Take bytes from the network; what they complete appears in the attributes.

        Raises:
            UpstreamError: they are not a valid response, or nothing was asked.
        """
        if self.is_complete:
            raise UpstreamError("The engine sent bytes that belong to no request.")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if self.is_complete:  # the answer is whole; what came after it belongs to nobody
                self.is_reusable = False
                return
            raise UpstreamError(f"The engine's response is not valid HTTP/1.1: {exc}.") from exc
        if self.head is None:
            self._head_bytes += len(data)
            if self._head_bytes > self._max_head_bytes:
                raise UpstreamError("The header section of the engine's response is too large.")

    def feed_eof(self) -> bool:
        """Take the end of the connection; return whether it ended the response properly."""
        if self._ends_with_connection and not self.is_complete:
            self.is_complete = True
        return self.is_complete

    # Called by httptools, in this order.

    def on_message_begin(self) -> None:
        """Stop at a second response, which must not be mixed into the one that was asked for."""
        if self.is_complete:
            raise UpstreamError("The engine sent a response that nobody asked for.")

    def on_status(self, part: bytes) -> None:
        """Take a piece of the reason phrase."""
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one complete field line; trailers are dropped."""
        if self.head is not None:
            return
        lowered = name.lower()
        self._lines.append((lowered, b"%b: %b\r\n" % (name, value)))
        if lowered in _RESPONSE_FIELDS:
            if lowered in self._fields:
                value = _joined(self._fields[lowered], value)
            self._fields[lowered] = value.strip()

    def on_headers_complete(self) -> None:
        """Decide how the body ends."""
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100:
                raise UpstreamError(f"The engine answered with the status {status}.")
            return
        fields = self._fields
        declared = fields.get(b"content-length")
        length = None if declared is None else int(declared)
        is_bodiless = self._is_head_request or status in (204, 304)
        self._ends_with_connection = (
            length is None and not is_bodiless and b"transfer-encoding" not in fields
        )
        self.head = ResponseHead(status, self._reason, self._lines, fields, length)
        if self._is_head_request:
            # llhttp would now wait for the body that Content-Length announces. The connection
            # cannot be reused, because its parser's state is lost.
            self.is_complete = True

    def on_body(self, part: bytes) -> None:
        """Take a piece of the body."""
        self.body.append(part)

    def on_message_complete(self) -> None:
        """End the response, or forget an interim one (RFC 9110 §15.2)."""
        if self.head is None:
            self._forget_head()
        elif not self._is_head_request:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()
