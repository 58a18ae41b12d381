"""Built-in conversations that show whether two tokenizers and templates are the same."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headstart.types import JsonObject

_TOOL: Final[JsonObject] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather, in °C; “unknown” for no place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City & country"},
                "days": {"type": "integer", "minimum": 1, "default": 1},
            },
            "required": ["place"],
        },
    },
}
_BARE_TOOL: Final[JsonObject] = {"type": "function", "function": {"name": "now"}}
_CALL: Final[JsonObject] = {
    "id": "call_00000001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"place": "Zürich",  "days":2}'},
}


class TokenProbe(msgspec.Struct, frozen=True):
    """One comparison.

    Attributes:
        name: for messages.
        body: of a request, without its model.
        is_chat: to chat completions, or to completions.
    """

    name: str
    body: JsonObject
    is_chat: bool = True


def probes(special_texts: Sequence[str]) -> Iterator[TokenProbe]:
    """Yield the comparisons; what an engine refuses of them is no evidence.

    Args:
        special_texts: special tokens of the vocabulary, to be written in a user's text.
    """
    user: JsonObject = {"role": "user", "content": "What is it like in Zürich?"}
    system: JsonObject = {"role": "system", "content": "You are terse.\n\n- Answer in one line. "}
    yield TokenProbe("probe user", {"messages": [user]})
    yield TokenProbe("probe system", {"messages": [system, user]})
    yield TokenProbe("probe turns", {"messages": _turns()})
    yield TokenProbe("probe parts", {"messages": [_parts("user", "One.", " Two ", "三")]})
    written = " and ".join(special_texts)
    yield TokenProbe(
        "probe special tokens",
        {"messages": [{"role": "user", "content": f"Say {written}, {written}"}]},
    )
    yield TokenProbe("probe tools", {"messages": [system, user], "tools": [_TOOL, _BARE_TOOL]})
    called: JsonObject = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
    result: JsonObject = {
        "role": "tool",
        "tool_call_id": "call_00000001",
        "content": '{"sky": "clear", "t": 21.50}',
    }
    yield TokenProbe(
        "probe tool calls",
        {"messages": [system, user, called, result, user], "tools": [_TOOL]},
    )
    yield TokenProbe(
        "probe text", {"prompt": f"Once upon a time 1234567 \n\n\tit's{written}"}, False
    )


def _turns() -> list[JsonObject]:
    return [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hi. 你好 👋🏽 naïve\r\n  code:\n\tx = 3.14159"},
        {"role": "user", "content": "  ...and   then?\n"},
        {"role": "assistant", "content": "<think>hm</think>\n\nThen 100,000 things."},
        {"role": "user", "content": "OK"},
    ]


def _parts(role: str, *texts: str) -> JsonObject:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
