"""Bring OpenAI chat messages to the one shape that templates read: a role and plain text.

Does not know any model's template and does not add, drop or reorder messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.errors import BadRequest
from headstart.types import JsonObject

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Return copies whose content is text; does not touch any other field.

    Text parts are joined by a newline, as vLLM joins them for templates that read strings.
    `developer`, OpenAI's newer name, becomes `system`. Absent or null content becomes "".

    Raises:
        BadRequest: a message is no object, has no role, or holds an image or other non-text part.
    """
    if not messages:
        raise BadRequest("`messages` is empty; send at least one message.", param="messages")
    return [_normalise(message, index) for index, message in enumerate(messages)]


def _normalise(message: Mapping[str, Any], index: int) -> JsonObject:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise BadRequest(f"`{where}` must be an object.", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"`{where}.role` must be a non-empty string.", param=f"{where}.role")
    turn: JsonObject = dict(message)
    turn["role"] = "system" if role == "developer" else role
    turn["content"] = _text_of(message.get("content"), f"{where}.content")
    return turn


def _text_of(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"`{where}` must be a string or a list of text parts.", param=where)
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _TEXT_PARTS:
        raise BadRequest(
            f"`{where}` has type {kind!r}; this model reads text only, so send text parts.",
            param=where,
        )
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise BadRequest(f"`{where}` has no text.", param=where)
    return text
