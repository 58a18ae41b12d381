"""An engine's response on its way to the client: framed anew, looked at, ended in form.

Pure: bytes in, bytes out. The exchange writes what comes out.
"""

from enum import Enum, auto
from http import HTTPStatus
from typing import Final

from headstart.errors import HeadstartError
from headstart.types import JsonObject
from headstart.wire.anthropic import MESSAGES_PATH, messages_error_event
from headstart.wire.http1 import (
    CONNECTION_FIELDS,
    LAST_CHUNK,
    Request,
    ResponseHead,
    chunk,
    response_head,
)
from headstart.wire.openai import error_event, says_engine_ended, usage_of
from headstart.wire.sse import SseScanner

# An engine that is itself a headstart gateway says these of itself; the client sees ours.
_REPLACED: Final = CONNECTION_FIELDS | {
    b"x-headstart-request-id",
    b"x-headstart-replica",
    b"x-headstart-template",
    b"x-headstart-receipt",
}

# Fault reports are short; what is longer is passed on as it comes.
_MAX_FAULT_BYTES: Final = 16 * 1024

# Usage is at the end of a JSON body; one larger than this is passed on without being read.
_MAX_READ_BYTES: Final = 1024 * 1024


class Framing(Enum):
    """How the client learns where the body ends."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    CLOSE = auto()


class ResponseRelay:
    """One response.

    Args:
        request: what is answered; its version and method decide the framing.
        head: the engine's.
        own_lines: the gateway's header fields, with their CRLF.
        hides_usage: see `SseScanner`.

    Attributes:
        head_bytes: what the client gets first.
        closes_connection: the connection cannot be used after this response.
        is_event_stream: the body is server-sent events that can be read.
        is_content: the last piece of an event stream contained generated text.
    """

    __slots__ = (
        "_collected",
        "_is_chunked",
        "_is_fault",
        "_is_messages",
        "_is_open_ended",
        "_num_collected",
        "_scanner",
        "closes_connection",
        "head_bytes",
        "is_content",
        "is_event_stream",
    )

    def __init__(
        self, request: Request, head: ResponseHead, own_lines: bytes, *, hides_usage: bool
    ) -> None:
        self.is_event_stream = head.is_event_stream
        self._scanner = SseScanner(hides_usage=hides_usage) if self.is_event_stream else None
        self._is_messages = request.path == MESSAGES_PATH
        self._is_fault = head.status == HTTPStatus.INTERNAL_SERVER_ERROR
        is_read = head.is_json and (head.status < 400 or self._is_fault)
        self._collected: list[bytes] | None = [] if is_read else None
        self._num_collected = 0
        self.is_content = False
        may_shrink = hides_usage and self.is_event_stream
        framing = _framing(request, head, may_shrink=may_shrink)
        self._is_chunked = framing is Framing.CHUNKED
        self._is_open_ended = framing in (Framing.CHUNKED, Framing.CLOSE)
        self.closes_connection = not request.is_keep_alive or framing is Framing.CLOSE
        self.head_bytes = self._head(request, head, own_lines)

    @property
    def has_error_event(self) -> bool:
        """Whether the engine reported an error inside the stream."""
        return self._scanner is not None and self._scanner.has_error

    @property
    def is_engine_fault(self) -> bool:
        """Whether that error is the engine's doing, so that another one may do better."""
        scanner = self._scanner
        return scanner is not None and scanner.has_error and not 400 <= scanner.error_status < 500

    def holds_back(self, piece: bytes) -> bool:
        """Whether all up to `piece`, which `body` returned, does not show yet what is answered."""
        if self._scanner is not None:
            return not piece
        is_readable = self._is_fault and self._collected is not None
        return is_readable and self._num_collected < _MAX_FAULT_BYTES

    @property
    def has_engine_ended(self) -> bool:
        """Whether the answer is an engine's word that it has ended, so that another may do."""
        if self._scanner is not None:
            return self._scanner.has_engine_ended
        return (
            self._is_fault
            and self._collected is not None
            and says_engine_ended(b"".join(self._collected))
        )

    def body(self, data: bytes) -> bytes:
        """Return what to write for the next piece (not empty) of the body; may be empty."""
        scanner = self._scanner
        if scanner is not None:
            data = scanner.feed(data)
            self.is_content = scanner.is_content
        elif self._collected is not None:
            self._num_collected += len(data)
            self._collected.append(data)
            if self._num_collected > _MAX_READ_BYTES:
                self._collected = None
        return chunk(data) if data and self._is_chunked else data

    def end(self) -> bytes:
        """Return what ends a complete response."""
        rest = self._frame(self._scanner.end()) if self._scanner is not None else b""
        return rest + LAST_CHUNK if self._is_chunked else rest

    def fail(self, error: HeadstartError) -> bytes | None:
        """Return what ends a response that the engine did not complete.

        An event stream gets an event that says so and its proper end, but never a `[DONE]`. For
        anything else None: the connection has to be cut, so that the client notices.
        """
        if self._scanner is None or not self._is_open_ended:
            return None
        own = messages_error_event(error) if self._is_messages else error_event(error)
        event = self._frame(self._scanner.abandon() + own)
        return event + LAST_CHUNK if self._is_chunked else event

    def usage(self) -> JsonObject | None:
        """Return the engine's usage object; None if it gave none, or none that could be read."""
        if self._scanner is not None:
            return self._scanner.usage
        if not self._collected:
            return None
        return usage_of(b"".join(self._collected))

    def _frame(self, data: bytes) -> bytes:
        return chunk(data) if data and self._is_chunked else data

    def _head(self, request: Request, head: ResponseHead, own_lines: bytes) -> bytes:
        lines = head.header.forwarded(_REPLACED) + own_lines
        if self._is_chunked:
            lines += b"transfer-encoding: chunked\r\n"
        elif head.content_length is not None and not self._is_open_ended and head.status != 204:
            lines += b"content-length: %d\r\n" % head.content_length
        if self.closes_connection:
            lines += b"connection: close\r\n"
        elif request.minor_version == 0:
            lines += b"connection: keep-alive\r\n"
        return response_head(head.status, head.reason, lines)


def _framing(request: Request, head: ResponseHead, *, may_shrink: bool) -> Framing:
    if request.method == "HEAD" or head.status in (204, 304):
        return Framing.NONE
    if head.content_length is not None and not may_shrink:
        return Framing.LENGTH
    return Framing.CHUNKED if request.minor_version == 1 else Framing.CLOSE
