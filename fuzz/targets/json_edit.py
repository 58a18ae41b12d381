"""Edits of JSON text: one member changes, seen by two JSON parsers, and no other byte does."""

from collections.abc import Hashable
from contextlib import suppress

import msgspec

from fuzz.target import Target, strict_json
from headstart.wire.json_edit import append_member, members, set_member, set_nested_member

_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NEW = b'{"new":[1,"}"]}'


def check(data: bytes) -> Hashable:
    """Members are where they are, and an edit touches nothing else."""
    found = list(members(data))  # on any input it ends
    try:
        before = _raw_members(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if len(data) % 8 == 0:
            _edit_all(data)
        return "no object", len(found)
    assert {m.key: data[m.start : m.end].rstrip() for m in found} == before
    for key in ("k", "stream_options", *[member.key for member in found[:1]]):
        _check_set(data, key, before)
    _check_nested(data, before)
    return "object", min(len(found), 4), len(found) - len(before)


def drive(data: bytes) -> int:
    """Scan and edit a long text, if it is an object as callers promise; nothing is kept."""
    try:
        _raw_members(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    set_member(data, "k", _NEW)
    set_nested_member(data, "stream_options", "include_usage", b"true")
    return 0


def _raw_members(text: bytes) -> dict[str, bytes]:
    return {key: bytes(raw) for key, raw in _RAW_MEMBERS.decode(text).items()}


def _edit_all(data: bytes) -> None:
    # What these do with text that is no object is undefined; they end.
    with suppress(ValueError):
        set_nested_member(data, "k", "x", b"1")
    with suppress(ValueError):
        set_member(data, "k", b"1")


def _check_set(data: bytes, key: str, before: dict[str, bytes]) -> None:
    changed = set_member(data, key, _NEW)
    assert _raw_members(changed) == {**before, key: _NEW}
    _check_bytes_around(data, changed)
    appended = append_member(data, key, _NEW)
    assert _raw_members(appended) == {**before, key: _NEW}
    _check_bytes_around(data, appended)
    _compare_views(data, changed, key)


def _check_bytes_around(data: bytes, changed: bytes) -> None:
    """All that precedes and follows the new value is the old text, a comma and the key apart."""
    at = changed.rindex(_NEW)
    head, tail = changed[:at], changed[at + len(_NEW) :]
    assert data.endswith(tail)
    rest = data[: len(data) - len(tail)]
    is_replaced = rest.startswith(head)
    shared = len(head)
    while not rest.startswith(head[:shared]):
        shared -= 1
    assert is_replaced or shared == len(rest), "a byte before the added member changed"


def _compare_views(data: bytes, changed: bytes, key: str) -> None:
    try:
        value = strict_json(data)
    except ValueError:
        return
    assert isinstance(value, dict)
    assert strict_json(changed) == {**value, key: strict_json(_NEW)}


def _check_nested(data: bytes, before: dict[str, bytes]) -> None:
    changed = set_nested_member(data, "k", "in", b"7")
    outer = before.get("k", b"null")
    after = _raw_members(changed)
    others = {key: raw for key, raw in after.items() if key != "k"}
    assert others == {key: raw for key, raw in before.items() if key != "k"}
    if outer == b"null":
        assert _raw_members(after["k"]) == {"in": b"7"}
    elif outer.startswith(b"{"):
        try:
            inner = _raw_members(outer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        assert _raw_members(after["k"]) == {**inner, "in": b"7"}
    else:
        assert changed == data


TOKENS = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b" ",
        b"\t",
        b"\r\n",
        b"null",
        b"true",
        b"0",
    ),
    *(b"-1.5e+3", b'""', b"{}", b"[]", b"{ }", b'"k":1,', b',"k":{}', b'"k":{"in":1},', b'"k":[],'),
    *(
        b'"k":null,',
        b'"k" : "}" ,',
        b'"\\u006b":2,',
        b'"in":0,',
        b'\\"',
        b"\\\\",
        b"\\u0022",
        b'"}]',
    ),
    *(b'"stream_options":{"a":[{"b":"]}"}]},', b'"\xff":1,', b'"\xed\xa0\x80":1,', b'"\\ud83d":1,'),
    *(b"[[[[[[[[", b"]]]]]]]]", b'{"a":{"a":{"a":', b"}}}", b"\x00", b"\x1f", b"\x7f", b"\xc3\xa9"),
)

TARGET = Target("json_edit", check, TOKENS, share=0.8, drive=drive, max_kept_bytes=1024)
