"""Streams on their way through: `SseScanner` against events read line by line."""

import json
from collections.abc import Hashable, Iterable

from fuzz.naive import sse as naive
from fuzz.target import Target, kept_bytes, pieces
from headstart.errors import UpstreamError
from headstart.wire.openai import error_event
from headstart.wire.sse import MAX_HELD_BYTES, SseScanner

_ERROR_EVENT = error_event(UpstreamError("The engine died."))
_ERROR_DATA = naive.data(_ERROR_EVENT)


def check(data: bytes) -> Hashable:
    """Nothing but hidden usage is missing, however the stream is cut or ended."""
    # An event a piece is how engines write, and what a scanner may be quick about.
    parts = naive.events(data) if len(data) % 2 else list(pieces(data))
    shown, plain = _scan(parts, hides=False)
    hidden, hiding = _scan([data], hides=True)
    hidden_cut, hiding_cut = _scan(parts, hides=True)
    assert shown == data, "bytes were changed"
    assert hidden_cut == hidden, "cutting changes what is hidden"
    assert hiding_cut.usage == hiding.usage == plain.usage, "cutting changes the usage figures"
    assert hiding_cut.has_error == hiding.has_error == plain.has_error, "cutting changes an error"
    num_hidden = compare_hidden(data, hidden)
    if len(data) % 4 == 0:
        _check_abandon(data, parts)
    return num_hidden, plain.usage is not None, plain.has_error, len(naive.events(data)) > 1


def drive(data: bytes) -> int:
    """Scan a long stream in network-sized pieces; return what the scanners then keep."""
    scanners = [SseScanner(), SseScanner(hides_usage=True)]
    for at in range(0, len(data), 4096):
        for scanner in scanners:
            scanner.feed(data[at : at + 4096])
    return max(kept_bytes(scanner) for scanner in scanners)


def _scan(parts: Iterable[bytes], *, hides: bool) -> tuple[bytes, SseScanner]:
    scanner = SseScanner(hides_usage=hides)
    out = b"".join([scanner.feed(part) for part in parts if part])
    return out + scanner.end(), scanner


def compare_hidden(data: bytes, hidden: bytes) -> int:
    """Walk through the events: each is there, or is one that may be hidden."""
    num_hidden = at = 0
    has_plain_ends = b"\r" not in data
    for event in naive.events(data):
        kind = _kind(event) if b"usage" in event else ""
        must_hide = has_plain_ends and kind == "usage only"
        if not has_plain_ends and not hidden.startswith(event, at):
            # Of an end like CR CR LF, which nobody writes, the scanner leaves the LF.
            at += len(hidden) - at - len(hidden[at:].lstrip(b"\r\n"))
        if hidden.startswith(event, at) and not must_hide:
            at += len(event)
        elif kind == "usage only":
            num_hidden += 1
        elif kind == "null usage":
            at = _without_null(event, hidden, at)
            num_hidden += 1
        else:
            # Mixed line ends can hide an event's end from the scanner, and it then takes two for
            # one; what it removes is still nothing but usage.
            assert not has_plain_ends, "an event without usage is missing"
            return num_hidden
    rest = hidden[at:]
    assert not (rest if has_plain_ends else rest.strip(b"\r\n")), "bytes were added"
    return num_hidden


def _kind(event: bytes) -> str:
    text = naive.data(event)
    if text is None:
        return ""
    try:
        value = _parsed(text)
    except ValueError:
        return ""
    if not isinstance(value, dict) or "usage" not in value:
        return ""
    if value.get("choices") == [] and isinstance(value["usage"], dict):
        return "usage only"
    return "null usage" if value["usage"] is None else ""


def _parsed(text: bytes) -> object:
    # What is not UTF-8 and what no double can hold is the engine's affair; an event may be hidden
    # as long as the rest is JSON.
    try:
        return json.loads(text.decode("latin-1"))
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _without_null(event: bytes, hidden: bytes, at: int) -> int:
    """Return the offset after `event` in `hidden`, where its `"usage": null` is left out."""
    expected = _parsed(naive.data(event) or b"")
    assert isinstance(expected, dict)
    del expected["usage"]
    shown = naive.events(hidden[at:])
    assert shown, "an event with a null usage is missing"
    assert _parsed(naive.data(shown[0]) or b"") == expected, "more than a null usage is missing"
    return at + len(shown[0])


def _check_abandon(data: bytes, parts: list[bytes]) -> None:
    """After an engine's death the stream is events of the engine's and then one of ours."""
    hides = len(data) % 8 == 0
    scanner = SseScanner(hides_usage=hides)
    out = b"".join([scanner.feed(part) for part in parts])
    shown = naive.events(out[-256:] + scanner.abandon() + _ERROR_EVENT)
    assert naive.data(shown[-1]) == _ERROR_DATA, "our event is not read as one"
    assert hides or data.startswith(out), "bytes were changed before the end"


TOKENS = (
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b"\r\r",
        b"\n\r\n",
        b"data: ",
        b"data:",
        b"data",
    ),
    *(b"event: ", b": c\n\n", b"id: 1\n", b"data: [DONE]\n\n", b"\xff", b"\x00", b"\xef\xbb\xbf"),
    *(b'{"choices":[],"usage":{"prompt_tokens":1}}', b'"usage":null', b',"usage":null', b'"usage"'),
    *(
        b'"usage" : null , ',
        b'{"usage":{}}',
        b'"choices":[]',
        b'"choices":[{}]',
        b'{"a":1}',
        b"null",
    ),
    *(b'"error":{"message":"x"}', b'"error":null', b'"error"', b'"content":"x"', b'"content":""'),
    *(b'{"message":{"usage":{"input_tokens":1}}}', b'{"response":{"usage":{}}}', b"[[[[", b"}}"),
    *(b"\\u0022", b'\\"', b"\\", b'"', b"{", b"}", b"[", b"]", b",", b":", b" ", b"1e999", b"-"),
    *(b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', b'data: {"usage":null,"a":1}\n\n'),
)

TARGET = Target("sse", check, TOKENS, share=0.8, drive=drive, max_kept_bytes=3 * MAX_HELD_BYTES)
