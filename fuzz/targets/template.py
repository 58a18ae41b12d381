"""Bodies that name a template: assembled, or refused with the client's error."""

from collections.abc import Hashable
from functools import cache
from pathlib import Path

import msgspec

from fuzz.target import Target
from headstart.errors import BadRequest, NotFound
from headstart.templates import TemplateSet
from headstart.templates.apply import apply_template

_FOLDER = Path(__file__).parents[2] / "examples" / "templates"
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ASSEMBLED = frozenset({"model", "messages", "tools", "response_format"})


@cache
def _templates() -> TemplateSet:
    return TemplateSet.load(_FOLDER)


def check(data: bytes) -> Hashable:
    """What the template does not assemble keeps its bytes, and the rest is JSON."""
    try:
        applied = apply_template(data, _templates())
    except (BadRequest, NotFound) as error:
        assert error.status in (400, 404)
        return type(error).__name__, error.param and error.param[:20]
    before, after = _RAW_MEMBERS.decode(data), _RAW_MEMBERS.decode(applied.body)
    assert "prompt" not in after
    kept = {key: bytes(raw) for key, raw in before.items() if key not in {*_ASSEMBLED, "prompt"}}
    assert {key: bytes(raw) for key, raw in after.items() if key not in _ASSEMBLED} == kept
    messages = msgspec.json.decode(after["messages"], type=list[msgspec.Raw])
    return "applied", min(len(messages), 8), len(kept)


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
        b"null",
        b"true",
        b"0",
        b"1e9",
        b'""',
        b"{}",
        b"[]",
    ),
    *(
        b'"prompt":{"id":"support-agent"}',
        b'"id":"support-agent",',
        b'"version":"1",',
        b'"version":null,',
    ),
    *(b'"variables":{"question":"q","now":"n","documents":[]}', b'"question":"q",', b'"now":1,'),
    *(
        b'"documents":["d"],',
        b'"documents":[{"id":"1","text":"t"}],',
        b'"documents":null,',
        b"{{ x }}",
    ),
    *(b'"messages":[{"role":"user","content":"hi"}],', b'"role":"system",', b'"role":"tool",'),
    b'"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}],',
    *(
        b'"content":[{"type":"text","text":"x"}],',
        b'"content":null,',
        b'"model":"m",',
        b'"tools":[],',
    ),
    *(b'"\\ud800":1,', b"\\ud800", b"\xff", b"\x00", b"\\u0000", b"[[[[[[[[", b'"temperature":0,'),
)

TARGET = Target("template", check, TOKENS, share=0.2)
