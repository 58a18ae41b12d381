"""Bytes to HTTP/1.1 responses: what engines send. See `http1_parse`."""

from typing import Final

import httptools

from headstart.errors import UpstreamError
from headstart.wire.http1 import LENGTH, HeaderSection, ResponseHead, joined, says_close
from headstart.wire.known_head import KnownHead, known_head

# What a gateway reads of a response; all other fields only pass through.
_RESPONSE_FIELDS: Final = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"transfer-encoding",
    }
)


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
        "_is_amid",
        "_is_head_request",
        "_known",
        "_known_head",
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
        self._is_amid = False
        # Set only while the parser is between two responses.
        self._known: KnownHead | None = None
        self._known_head = ResponseHead(0, b"", HeaderSection((), {}))
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
        begins = not self._is_amid
        if begins and self._is_known(data):
            return
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
        elif begins and self.is_reusable:
            self._remember(data, self.head)

    def _is_known(self, data: bytes) -> bool:
        if self._known is None or self._is_head_request:
            return False
        body = self._known.body_of(data)
        if not body:
            self._known = None
            return False
        self.head = self._known_head.with_length(len(body))
        self.body.append(body)
        self.is_complete = self.is_reusable = True
        return True

    def _remember(self, data: bytes, head: ResponseHead) -> None:
        known = known_head(data, head.content_length) if head.content_length else None
        if known is not None:
            self._known = known
            self._known_head = head

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
        self._is_amid = True

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
                value = joined(self._fields[lowered], value)
            # Not tabs: llhttp does not know `chunked` with a tab behind it, and nor may we.
            self._fields[lowered] = value.strip(b" ")

    def on_headers_complete(self) -> None:
        """Decide how the body ends."""
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100:
                raise UpstreamError(f"The engine answered with the status {status}.")
            return
        fields = self._fields
        declared = fields.get(LENGTH)
        length = None if declared is None else int(declared)
        is_bodiless = self._is_head_request or status in (204, 304)
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            raise UpstreamError("The engine's response is not HTTP/1.1.")
        if fields.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            # We take a coding off only if we know it, and asked for none (RFC 9112 §6.1).
            raise UpstreamError("The engine's response has a transfer coding besides `chunked`.")
        self._ends_with_connection = (
            length is None and not is_bodiless and b"transfer-encoding" not in fields
        )
        header = HeaderSection.unframed(self._lines, fields)
        self.head = ResponseHead(status, self._reason, header, length)
        if self._is_head_request:
            # llhttp would now wait for the body that Content-Length announces. The connection
            # cannot be reused, because its parser's state is lost.
            self.is_complete = True

    def on_body(self, part: bytes) -> None:
        """Take a piece of the body; the answer to HEAD has none, whatever the engine sends."""
        if self.head is None:  # of an interim response, which has none either (RFC 9110 §15.2)
            raise UpstreamError("The engine sent an interim response with a body.")
        if not self._is_head_request:
            self.body.append(part)

    def on_message_complete(self) -> None:
        """End the response, or forget an interim one (RFC 9110 §15.2)."""
        self._is_amid = False
        if self.head is None:
            self._forget_head()
        elif not self._is_head_request:
            self.is_complete = True
            fields = self.head.header.fields
            # The framing of an HTTP/1.0 message with a coding is not to be trusted further
            # (RFC 9112 §6.1).
            is_doubtful = (
                b"transfer-encoding" in fields and self._parser.get_http_version() == "1.0"
            )
            keeps_alive = self._parser.should_keep_alive() and not says_close(fields)
            self.is_reusable = keeps_alive and not is_doubtful
