"""Messages and tools in the shape in which vLLM hands them to a chat template.

It rebuilds each message from the fields that it knows, parses the arguments of tool calls, and
fills in what a tool's definition leaves out. Templates that print whole objects as JSON show all of
that, the order of keys included, so it has to be the same here to the byte.

Nothing is checked for its own sake: what vLLM would refuse gives None, and the engine answers.

Source: vLLM 0.32, `vllm/entrypoints/chat_utils.py` (later `vllm/renderers/chat_utils/`) and
`vllm/entrypoints/openai/chat_completion/protocol.py`; compared with a live server.
"""

import json
from typing import Final

from headstart.prompt.template_traits import ContentFormat
from headstart.types import JsonObject

_TEXT_FIELDS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of content parts that are text, and the field that holds it."""

_PART_FIELDS: Final = frozenset(
    {
        *("type", "text", "refusal", "thinking", "name", "data", "file", "uuid", "closed"),
        *("image_url", "image_pil", "image_embeds", "video_url", "video_embeds"),
        *("audio_url", "audio_embeds", "input_audio", "prompt_cache_breakpoint"),
    }
)
"""Fields of parts that vLLM knows; a template that sees parts sees all others as well."""

_TOOL_FIELDS: Final = ("name", "description", "parameters")
_OPTIONAL_TOOL_FIELDS: Final = ("strict", "defer_loading")

_BILLING_HEADER: Final = "x-anthropic-billing-header"
"""A line with which Claude Code begins its system text; it changes with every request."""


def vllm_messages(
    messages: object, shape: ContentFormat, *, knows_developer: bool = True
) -> list[JsonObject] | None:
    """Return the conversation that the template sees; None if it cannot be known.

    That is: a part that is no text (what an image becomes depends on the model's processor), or
    messages that vLLM refuses.

    Args:
        messages: of the request.
        shape: of their content.
        knows_developer: the template has that role; else it becomes `system`.
    """
    if not isinstance(messages, list):
        return None
    turns = [_turn(message, shape) for message in messages]
    known = [turn for turn in turns if turn is not None]
    if len(known) != len(turns):
        return None
    if not knows_developer and any(turn["role"] == "developer" for turn in known):
        return _with_one_system_message(known)
    return known


def vllm_tools(tools: object) -> list[JsonObject] | None:
    """Return tool definitions as the template sees them; None if they are none.

    Raises:
        ValueError: vLLM refuses them.
    """
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise ValueError("tools")
    return [_tool(tool) for tool in tools]


def _turn(message: object, shape: ContentFormat) -> JsonObject | None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    role = message["role"]
    parts = _text_parts(message.get("content"))
    if parts is None:
        return None
    if role == "system":
        parts = _without_billing_header(parts)
    turn: JsonObject = {"role": role, "content": parts}
    if shape == "string":
        turn["content"] = _joined([part for part in parts if part["text"]])
    elif role == "tool":
        turn["content"] = _joined(parts)
    if role == "assistant" and not _add_assistant_fields(turn, message):
        return None
    if role == "tool" and "tool_call_id" in message:
        turn["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        turn["name"] = message["name"]
    if role == "developer":
        turn["tools"] = message.get("tools")
    return turn


def _text_parts(content: object) -> list[JsonObject] | None:
    """Return a message's parts; None if one is no text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return None
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
        text = part.get(field) if field is not None else None
        if not isinstance(text, str):
            return None
        extra = {key: value for key, value in part.items() if key not in _PART_FIELDS}
        parts.append({"type": "text", "text": text, **extra})
    return parts


def _without_billing_header(parts: list[JsonObject]) -> list[JsonObject]:
    kept = []
    for part in parts:
        text = str(part["text"])
        if text.startswith(_BILLING_HEADER):
            text = text.partition("\n")[2]
            if not text:
                continue
        kept.append({**part, "text": text})
    return kept


def _with_one_system_message(turns: list[JsonObject]) -> list[JsonObject]:
    """Make system text of a developer's, and one message of all system text, at the front."""
    turns = [
        {"role": "system", **{k: v for k, v in turn.items() if k not in ("role", "tools")}}
        if turn["role"] == "developer"
        else turn
        for turn in turns
    ]
    places = [index for index, turn in enumerate(turns) if turn["role"] == "system"]
    if places == [0]:
        return turns
    texts = [_joined(turns[index]["content"]) for index in places]
    merged: JsonObject = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [merged, *(turn for turn in turns if turn["role"] != "system")]


def _joined(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content)
    return str(content)


def _add_assistant_fields(turn: JsonObject, message: JsonObject) -> bool:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            return False
        rebuilt = [_call(call) for call in calls]
        if None in rebuilt:
            return False
        if rebuilt:
            turn["tool_calls"] = rebuilt
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        turn["reasoning"] = turn["reasoning_content"] = reasoning
    return True


def _call(call: object) -> JsonObject | None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return None
    # Known fields first, in the order of OpenAI's types, then all others in the client's.
    known: JsonObject = {"arguments": None, "name": None}
    rebuilt = known | function | {"arguments": _arguments(function.get("arguments"))}
    ordered: JsonObject = {"id": None, "function": None, "type": "function"}
    return ordered | call | {"function": rebuilt}


def _arguments(given: object) -> JsonObject:
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def _tool(tool: object) -> JsonObject:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict):
        raise ValueError("tools")
    if not isinstance(function.get("name"), str):
        raise ValueError("tools")
    filled: JsonObject = {name: function.get(name) for name in _TOOL_FIELDS}
    optional = dict(function)
    if optional.get("defer_loading") is None:
        optional["defer_loading"] = tool.get("defer_loading")
    for name in _OPTIONAL_TOOL_FIELDS:
        if optional.get(name) is not None:
            filled[name] = optional[name]
    rebuilt: JsonObject = {"type": "function", "function": filled}
    if tool.get("defer_loading") is not None:
        rebuilt["defer_loading"] = tool["defer_loading"]
    return rebuilt
