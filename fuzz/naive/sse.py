"""Server-sent events line by line, as the HTML Living Standard §9.2.6 words it."""

import re

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def lines(raw: bytes) -> list[bytes]:
    """Return the lines of a stream, each with its end; the last may have none."""
    return _LINE.findall(raw)


def events(raw: bytes) -> list[bytes]:
    """Return the events of a stream with the empty line that ends each; the last may have none."""
    found = []
    event: list[bytes] = []
    for line in lines(raw):
        event.append(line)
        if line in (b"\n", b"\r\n", b"\r"):
            found.append(b"".join(event))
            event = []
    if event:
        found.append(b"".join(event))
    return found


def data(event: bytes) -> bytes | None:
    """Return an event's data; None if it has no `data` line."""
    found = []
    for line in lines(event):
        text = line.rstrip(b"\r\n")
        if text == b"data":
            found.append(b"")
        elif text.startswith(b"data:"):
            value = text[5:]
            found.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(found) if found else None
