"""Change one member of a JSON object's bytes and leave every other byte as it was.

The text is never parsed and written again, so number forms, key order, escapes, spacing and even
repeated keys stay as the client wrote them. Callers pass text that a JSON parser has accepted;
on anything else the result is undefined but the functions end.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

_SPACE: Final = b" \t\r\n"
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_GAP: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb"[^,\]}\s]+")
# Inside a nested value only strings and brackets matter: everything else is skipped.
_NESTED: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Member:
    """Where one member of the outermost object lies.

    Attributes:
        key: decoded; with its quotes if it is not valid UTF-8.
        key_start: offset of the key's opening quote.
        start: offset of the value's first byte.
        end: offset after the value's last byte.
    """

    key: str
    key_start: int
    start: int
    end: int


def members(text: bytes) -> Iterator[Member]:
    """Yield the members of the object that `text` is, in order.

    Cost: one pass over `text`.
    """
    at = _skip_space(text, 0) + 1
    while True:
        at = _skip_space(text, at)
        key = _STRING.match(text, at)
        if key is None:
            return
        start = _skip_space(text, _skip_space(text, key.end()) + 1)
        end = _value_end(text, start)
        yield Member(_decoded(key.group()), at, start, end)
        at = _skip_space(text, end) + 1


def set_member(text: bytes, key: str, value: bytes) -> bytes:
    """Return `text` with member `key` set to the JSON `value`.

    Where the key occurs, its last occurrence is replaced, because parsers let the last one win;
    where it does not, the member is added at the end.
    """
    found = None
    for member in members(text):
        if member.key == key:
            found = member
    if found is None:
        return append_member(text, key, value)
    return b"%b%b%b" % (text[: found.start], value, text[found.end :])


def append_member(text: bytes, key: str, value: bytes) -> bytes:
    """Return `text` with a member added at the end; it wins over an earlier one of that name.

    Cost: no scan, one copy.
    """
    end = text.rindex(b"}")
    comma = b"" if _is_empty(text, end) else b","
    return b"%b%b%b:%b%b" % (text[:end], comma, msgspec.json.encode(key), value, text[end:])


def set_nested_member(text: bytes, outer: str, inner: str, value: bytes) -> bytes:
    """Return `text` with `text[outer][inner]` set; `outer` is made if it is missing or null.

    An `outer` that is neither an object nor null is left alone: the engine is to complain of it.
    """
    found = None
    for member in members(text):
        if member.key == outer:
            found = member
    fresh = b"{%b:%b}" % (msgspec.json.encode(inner), value)
    if found is None:
        return append_member(text, outer, fresh)
    current = text[found.start : found.end]
    if current == b"null":
        changed = fresh
    elif current.startswith(b"{"):
        changed = set_member(current, inner, value)
    else:
        return text
    return b"%b%b%b" % (text[: found.start], changed, text[found.end :])


def _decoded(key: bytes) -> str:
    try:
        return msgspec.json.decode(key, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A parser that skips a member does not look into its key. With its quotes it equals none.
        return key.decode("latin-1")


def _is_empty(text: bytes, end: int) -> bool:
    at = end - 1
    while at >= 0 and text[at] in _SPACE:
        at -= 1
    # A `{` can end a non-empty object only as part of a string, whose quote would follow it.
    return at < 0 or text[at] == 0x7B


def _skip_space(text: bytes, at: int) -> int:
    match = _GAP.match(text, at)
    assert match is not None
    return match.end()


def _value_end(text: bytes, start: int) -> int:
    first = text[start : start + 1]
    if first == b'"':
        match = _STRING.match(text, start)
        return match.end() if match else len(text)
    if first not in (b"{", b"["):
        match = _SCALAR.match(text, start)
        return match.end() if match else len(text)
    depth = 0
    for token in _NESTED.finditer(text, start):
        if token.group() in (b"{", b"["):
            depth += 1
        elif token.group() in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return len(text)
