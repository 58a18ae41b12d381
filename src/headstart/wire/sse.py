r"""Server-sent events on their way through.

Theory of operation
-------------------
A stream is bytes that are passed on, not events that are built again. The scanner looks at what
passes and tells four things: whether content came, the usage figures, whether the engine reported
an error, and where it is safe to put in an event of our own.

It passes on whole lines only. A reader can do nothing with half a line, and holding it means that
after an engine's death the stream can be ended in form: the half line is dropped, the open event
closed, an error event added. While usage is hidden it passes on whole events, because whether an
event is to be hidden is known at its end. What it tells of is always read from whole events. If a
piece ends where an event ends, which is how engines write, the very bytes object that came in goes
out.

Lines end with LF, CRLF or CR, events with an empty line (HTML Living Standard §9.2.6).
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from headstart.types import JsonObject
from headstart.wire.openai import peek_response, says_engine_ended

# A line or event of this size is none that matters; it is passed on without waiting for its end.
MAX_HELD_BYTES: Final = 256 * 1024

_EVENT_END: Final = re.compile(rb"\n\r?\n|\r\r")
_USUAL_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_NEWLINES: Final = b"\r\n"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")

# A member that carries generated text and is not empty. Quotes inside JSON strings are escaped, so
# the bytes `"content":"x` can only be such a member, never text that talks about one.
_CONTENT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments|delta|name)"\s*:\s*"[^"]'
)
_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments|delta)"\s*:\s*"([^"\\]+)"'
)
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
        error_status: the HTTP status that it named; 0 if none.
        has_engine_ended: it said that the engine itself has ended.
        is_content: what the last `feed` returned contains generated text.
    """

    __slots__ = (
        "_events",
        "_hides_usage",
        "_is_between",
        "_lines",
        "_tail",
        "_usual",
        "error_status",
        "has_engine_ended",
        "has_error",
        "is_content",
        "usage",
    )

    def __init__(self, *, hides_usage: bool = False) -> None:
        self._hides_usage = hides_usage
        self._lines = _Holder(_last_line_end)
        self._events = _Holder(_last_event_end)
        self._is_between = True  # nothing is held
        self._tail = b""
        self._usual: _TextEvent | None = None
        self.usage: JsonObject | None = None
        self.has_error = False
        self.error_status = 0
        self.has_engine_ended = False
        self.is_content = False

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return what to pass on now, which may be empty."""
        if self._is_between:
            if self._usual is not None:
                before, after = self._usual
                if (
                    data.startswith(before)
                    and data.endswith(after)
                    and len(data) > len(before) + len(after)
                    and data.find(b'"', len(before), -len(after)) < 0
                ):
                    self.is_content = True
                    self._tail = data
                    return data
            if data.endswith(_USUAL_ENDS):
                return self._look_at(data, data)
        ready = data if self._hides_usage else self._lines.push(data)
        events = self._events.push(ready) if ready else b""
        self._is_between = not (self._lines.held or self._events.held)
        return self._look_at(events if self._hides_usage else ready, events)

    def end(self) -> bytes:
        """Return what is still held when the stream ends as it should."""
        rest = self._lines.take()
        events = self._events.take() + rest
        self._is_between = True
        return self._look_at(events if self._hides_usage else rest, events)

    def abandon(self) -> bytes:
        """Drop what is held; return the bytes after which an event of our own can follow."""
        self._lines.take()
        self._events.take()
        self._is_between = True
        tail = self._tail[-4:]
        if not tail or _EVENT_END.search(tail, max(0, len(tail) - 3)):
            return b""
        # After a lone CR one LF would only complete a CRLF.
        return b"\n" if tail[-1:] == b"\n" else b"\n\n"

    def _look_at(self, ready: bytes, events: bytes) -> bytes:
        """Note what `events` say, which are whole; return what to pass on of `ready`."""
        self.is_content = _CONTENT.search(ready) is not None
        has_usage, may_be_error = b'"usage"' in events, b'"error"' in events
        if has_usage:
            kept = self._account(events)
            if self._hides_usage:
                ready = kept
        if may_be_error:
            self._note_errors(events)
        if self.is_content and not (has_usage or may_be_error):
            self._usual = _text_event(events)
        # The last piece itself: a slice would cost more than keeping it a little longer.
        self._tail = ready if len(ready) >= 4 else self._tail[-4:] + ready
        return ready

    def _account(self, events: bytes) -> bytes:
        return b"".join(
            self._account_event(event) if b'"usage"' in event else event for event in _split(events)
        )

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
            # An empty line before it may be the rest of the former event's end.
            return event[: len(event) - len(event.lstrip(_NEWLINES))]
        # One such key on one line, and it is the outermost object's: nothing else can be meant.
        if peek.has_null_usage() and len(_USAGE_KEY.findall(event)) == 1 and _is_one_line(event):
            return _NULL_USAGE.sub(b"", event)
        return event

    def _note_errors(self, events: bytes) -> None:
        for event in _split(events):
            if b'"error"' in event:
                peek = peek_response(event_data(event))
                if peek is not None and peek.has_error():
                    self.has_error = True
                    self.error_status = peek.error_status()
                    self.has_engine_ended = says_engine_ended(event)


class _Holder:
    """Holds the bytes after the last end of something, as long as they are not too many."""

    __slots__ = ("_is_overlong", "_last_end", "held")

    def __init__(self, last_end: Callable[[bytearray, int], int]) -> None:
        self._last_end = last_end
        self._is_overlong = False
        self.held = bytearray()

    def push(self, data: bytes) -> bytes:
        """Add `data`; return all up to the last end, which may be nothing."""
        held = self.held
        # An end may have begun in the last two bytes of the former piece.
        searched = max(0, len(held) - 2)
        held += data
        cut = self._last_end(held, searched)
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

    def take(self) -> bytes:
        """Return what is held, and hold it no longer."""
        held = bytes(self.held)
        self.held.clear()
        return held


def _last_line_end(text: bytearray, searched: int) -> int:
    return max(text.rfind(b"\n", searched), text.rfind(b"\r", searched)) + 1


def _last_event_end(text: bytearray, searched: int) -> int:
    if text.endswith(_USUAL_ENDS):
        return len(text)
    # From left to right as `_split` goes, so that it makes no difference how a stream was cut.
    end = 0
    for match in _EVENT_END.finditer(text, searched):
        end = match.end()
    return end


class _TextEvent(NamedTuple):
    """An event, cut at its generated text; it says nothing of usage or errors."""

    before: bytes
    after: bytes


def _text_event(event: bytes) -> _TextEvent | None:
    text = _TEXT.search(event)
    if text is None or not event.endswith(_USUAL_ENDS):
        return None
    return _TextEvent(event[: text.start(1)], event[text.end(1) :])


def _is_one_line(event: bytes) -> bool:
    line = event.strip(_NEWLINES)
    return b"\n" not in line and b"\r" not in line


def event_data(event: bytes) -> bytes:
    """Return the data of one event: its `data` lines, joined by LF."""
    # Without CR, which hardly any engine writes, no pattern is needed; it takes ten times as long.
    lines = _LINE_END.split(event) if b"\r" in event else event.split(b"\n")
    return b"\n".join(
        [line[6:] if line[5:6] == b" " else line[5:] for line in lines if line.startswith(b"data:")]
    )


def _split(text: bytes) -> list[bytes]:
    if b"\r" not in text:
        *whole, rest = text.split(b"\n\n")
        return [event + b"\n\n" for event in whole] + ([rest] if rest else [])
    events = []
    start = 0
    for match in _EVENT_END.finditer(text):
        events.append(text[start : match.end()])
        start = match.end()
    if start < len(text):
        events.append(text[start:])
    return events
