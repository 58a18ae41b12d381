r"""Server-sent events on their way through.

Theory of operation
-------------------
A stream is bytes that are passed on, not events that are built again. The scanner looks at what
passes and tells four things: whether content came, the usage figures, whether the engine reported
an error, and where it is safe to put in an event of our own.

It passes on whole lines only. A reader can do nothing with half a line, and holding it means that
after an engine's death the stream can be ended in form: the half line is dropped, the open event
closed, an error event added. While usage is hidden it passes on whole events, because whether an
event is to be hidden is known at its end. If a piece ends where a line (event) ends, which is how
engines write, the very bytes object that came in goes out.

Lines end with LF, CRLF or CR, events with an empty line (HTML Living Standard §9.2.6).
"""

import re
from typing import Final

from headstart.types import JsonObject
from headstart.wire.openai import peek_response

# An event of this size is not a usage event; it is passed on without waiting for its end.
MAX_HELD_BYTES: Final = 256 * 1024

_EVENT_END: Final = re.compile(rb"\n\r?\n|\r\r")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")

# A member that carries generated text and is not empty. Quotes inside JSON strings are escaped, so
# the bytes `"content":"x` can only be such a member, never text that talks about one.
_CONTENT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments|delta|name)"\s*:\s*"[^"]'
)
_USUAL_CONTENT: Final = b'"content":"'
_USAGE_KEY: Final = re.compile(rb'"usage"\s*:')
_NULL_USAGE: Final = re.compile(rb',\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,')


class SseScanner:
    """Watches one stream.

    Args:
        hides_usage: remove the usage event and `"usage": null`, which come only because the
            gateway asked for usage on its own account.

    Attributes:
        usage: the engine's figures so far; later events complete earlier ones.
        has_error: an event reported an error.
        is_content: what the last `feed` returned contains generated text.
    """

    __slots__ = (
        "_held",
        "_hides_usage",
        "_is_overlong",
        "_tail",
        "_usual_ends",
        "has_error",
        "is_content",
        "usage",
    )

    def __init__(self, *, hides_usage: bool = False) -> None:
        self._hides_usage = hides_usage
        self._usual_ends = (b"\n\n", b"\r\n\r\n") if hides_usage else (b"\n",)
        self._held = bytearray()
        self._is_overlong = False
        self._tail = b""
        self.usage: JsonObject | None = None
        self.has_error = False
        self.is_content = False

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return what to pass on now, which may be empty."""
        if self._held or not data.endswith(self._usual_ends):
            data = self._cut(data)
            if not data:
                self.is_content = False
                return b""
        return self._look_at(data)

    def end(self) -> bytes:
        """Return what is still held when the stream ends as it should."""
        rest = bytes(self._held)
        self._held.clear()
        self.is_content = False
        return self._look_at(rest) if rest else b""

    def abandon(self) -> bytes:
        """Drop what is held; return the bytes after which an event of our own can follow."""
        self._held.clear()
        tail = self._tail[-4:]
        if not tail or _EVENT_END.search(tail, max(0, len(tail) - 3)):
            return b""
        return b"\n" if tail[-1:] in (b"\n", b"\r") else b"\n\n"

    def _cut(self, data: bytes) -> bytes:
        held = self._held
        # An end may have begun in the last bytes of the former piece.
        searched = max(0, len(held) - 3)
        held += data
        cut = self._last_end(searched)
        if cut == 0:
            if len(held) <= MAX_HELD_BYTES and not self._is_overlong:
                return b""
            self._is_overlong = True
            cut = len(held)
        else:
            self._is_overlong = False
        ready = bytes(held[:cut])
        del held[:cut]
        return ready

    def _last_end(self, searched: int) -> int:
        held = self._held
        if not self._hides_usage:
            return max(held.rfind(b"\n", searched), held.rfind(b"\r", searched)) + 1
        end = 0
        for mark in (b"\n\n", b"\n\r\n", b"\r\r"):
            at = held.rfind(mark, searched)
            if at >= 0:
                end = max(end, at + len(mark))
        return end

    def _look_at(self, ready: bytes) -> bytes:
        at = ready.find(_USUAL_CONTENT)
        if at >= 0 and ready[at + 11 : at + 12] != b'"':
            self.is_content = True
        else:
            self.is_content = _CONTENT.search(ready) is not None
        if b'"usage"' in ready:
            ready = self._account(ready)
        if b'"error"' in ready:
            self._note_errors(ready)
        # The last piece itself: a slice would cost more than keeping it a little longer.
        self._tail = ready if len(ready) >= 4 else self._tail[-4:] + ready
        return ready

    def _account(self, ready: bytes) -> bytes:
        kept = []
        start = 0
        for event in _split(ready):
            start += len(event)
            kept.append(self._account_event(event) if b'"usage"' in event else event)
        assert start == len(ready)
        return b"".join(kept)

    def _account_event(self, event: bytes) -> bytes:
        peek = peek_response(event_data(event))
        if peek is None:
            return event
        usage = peek.usage_object()
        if usage is not None:
            self.usage = usage if self.usage is None else {**self.usage, **usage}
        if not self._hides_usage:
            return event
        if peek.is_usage_only():
            return b""
        # One such key, and it is the outermost object's: no nested object can be meant.
        if peek.has_null_usage() and len(_USAGE_KEY.findall(event)) == 1:
            return _NULL_USAGE.sub(b"", event)
        return event

    def _note_errors(self, ready: bytes) -> None:
        for event in _split(ready):
            if b'"error"' in event:
                peek = peek_response(event_data(event))
                if peek is not None and peek.has_error():
                    self.has_error = True


def event_data(event: bytes) -> bytes:
    """Return the data of one event: its `data` lines, joined by LF."""
    return b"\n".join(
        line[6:] if line[5:6] == b" " else line[5:]
        for line in _LINE_END.split(event)
        if line.startswith(b"data:")
    )


def _split(text: bytes) -> list[bytes]:
    events = []
    start = 0
    for match in _EVENT_END.finditer(text):
        events.append(text[start : match.end()])
        start = match.end()
    if start < len(text):
        events.append(text[start:])
    return events
