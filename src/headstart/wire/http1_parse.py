"""Bytes to HTTP/1.1 requests: what clients send.

Like `http1_responses`, this is fed whatever the network delivers, in any pieces, and gives the same
result for the same bytes however they are cut. Neither does I/O. See `http1` for the theory of
operation, and `known_head` for what happens before a parser is asked.
"""

import re
from collections import deque
from typing import Final

import httptools

from headstart.errors import (
    BadRequest,
    BodyTooLarge,
    HeadersTooLarge,
    HeadstartError,
)
from headstart.wire.http1 import (
    LENGTH,
    HeaderSection,
    HttpLimits,
    Request,
    connection_options,
    joined,
    says_close,
)
from headstart.wire.known_head import MAX_DIGITS, KnownHead, known_head
from headstart.wire.session import SESSION_FIELDS

# A client whose heads differ each time, because it numbers its requests, is soon not watched for
# their coming again.
_MAX_MISSED: Final = 3

_UPGRADE_FIELDS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})

# What a gateway reads of a request; all other fields only pass through.
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
        b"x-headstart-priority",
        b"x-headstart-receipt",
        *SESSION_FIELDS,
    }
)

# RFC 3986 §3.2.2 and RFC 9110 §7.2, without the comma: no host has one, and it is what joins two
# fields. Empty is a host (RFC 9112 §3.2).
_HOST: Final = re.compile(rb"(?:\[[\w:.~%-]+\]|[\w.~!$&'()*+;=%-]*)(?::[0-9]*)?")


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
        "_is_amid",
        "_is_quiet",
        "_known",
        "_known_request",
        "_limits",
        "_lines",
        "_max_head_bytes",
        "_num_missed",
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
        # Set only while the parser is between two requests.
        self._known: KnownHead | None = None
        self._known_request = Request("", b"", HeaderSection((), {}))
        self._num_missed = 0
        self._reset()

    @property
    def is_between_requests(self) -> bool:
        """Nothing of a next request has arrived."""
        return not self._is_amid

    def feed(self, data: bytes) -> None:
        """Take bytes from the network; what they complete appears in the attributes."""
        if self.error is not None:
            return
        if self._known is not None:
            body = self._known.body_of(data)
            if body is not None and len(body) <= self._limits.max_body_bytes:
                self.requests.append(self._known_request.with_body(body))
                self._num_missed = 0
                return
            self._known = None
            self._num_missed += 1
        begins, num_former = not self._is_amid, len(self.requests)
        self._parse(data)
        is_one = begins and not self._is_amid and len(self.requests) == num_former + 1
        if is_one and self._num_missed < _MAX_MISSED:
            self._remember(data, self.requests[-1])

    def _remember(self, data: bytes, request: Request) -> None:
        # Expect is another question each time; the number may grow up to the head's limit; and the
        # parser takes nothing after a request that ends the connection.
        num_body_bytes = len(request.body)
        is_near_limit = len(data) - num_body_bytes + MAX_DIGITS > self._max_head_bytes
        if b"expect" in request.header.fields or is_near_limit or not request.is_keep_alive:
            return
        self._known = known_head(data, num_body_bytes)
        if self._known is not None:
            self._known_request = request.with_body(b"")

    def _parse(self, data: bytes) -> None:
        self._is_quiet = True
        upgrade_at = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            upgrade_at = pause.args[0]
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
        if upgrade_at is not None:
            # Not while that exception is handled: it would become the context of the next one.
            self._decline_upgrade(data, upgrade_at)

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
        self._parse(head + data[num_parsed:])

    def _headers_too_large(self) -> HeadersTooLarge:
        limit = self._limits.max_header_bytes
        return HeadersTooLarge(f"The header section is larger than {limit} bytes; send less.")

    def _reset(self) -> None:
        self._target = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._fields: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._body: bytes | bytearray = b""
        self._is_amid = False
        self._is_quiet = False
        self.is_in_body = False
        self.wants_continue = False

    # Called by httptools, in this order.

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        self._is_amid = True

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
                value = joined(self._fields[lowered], value)
            self._fields[lowered] = value.strip()

    def on_headers_complete(self) -> None:
        """Check what llhttp does not."""
        self._is_quiet = False
        fields = self._fields
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(f"HTTP/{version} is not supported; use HTTP/1.1.")
        # RFC 9112 §3.2: exactly one, which HTTP/1.0 may leave out.
        if _HOST.fullmatch(fields.get(b"host", b"," if version == "1.1" else b"")) is None:
            raise BadRequest("The request needs exactly one Host field, with a host in it.")
        # RFC 9112 §3.2: a target has no fragment. Engines cut one off and so read another path.
        if b"#" in self._target:
            raise BadRequest("A request target has no fragment; write `#` as %23.")
        length = fields.get(LENGTH)
        if length is not None:
            if len(length) > MAX_DIGITS or int(length) > self._limits.max_body_bytes:
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
            return  # `_parse` is about to hear of it and reads the head again
        # llhttp takes `keep-alive` for the stronger word where both are said.
        keeps_alive = parser.should_keep_alive() and not says_close(self._fields)
        self.requests.append(
            Request(
                parser.get_method().decode("ascii"),
                origin_form(self._target),
                HeaderSection.unframed(self._lines, self._fields),
                bytes(self._body),  # no copy if it came in one piece
                minor_version=1 if parser.get_http_version() == "1.1" else 0,
                is_keep_alive=keeps_alive,
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
