"""Tools and answer schemas as plain text, for models whose chat template has no place for them.

The form (docs/embedded-engine.md shows it in full):

    system text                        as the client sent it
    # Tools                            one JSON tool definition a line, in the client's order
    # Answer format                    the JSON Schema on one line
    <tool_call>                        an assistant's call, on lines of its own
    {"name": "search", "arguments": {"q": "x"}}
    </tool_call>
    <tool_response>                    a tool's result, in a user turn
    …
    </tool_response>

Everything here is a pure function of its input, so equal tools give equal bytes in every process.
Keys keep the order in which the client sent them: sorting is the gateway's decision (canonical
JSON), and arguments that a model produced are replayed byte for byte.

Reading a model's output back into `tool_calls` is `prompt.tool_calls`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.errors import BadRequest
from headstart.types import JsonObject

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"
_RESPONSE_START = "<tool_response>"
_RESPONSE_END = "</tool_response>"

_TOOLS_HEAD = """# Tools

These functions can be called. Each line is one definition:
<tools>
"""
_TOOLS_TAIL = f"""
</tools>

To call a function, answer with its name and a JSON object of arguments, on lines of their own:
{CALL_START}
{{"name": "<function name>", "arguments": {{<arguments>}}}}
{CALL_END}
Results come back between {_RESPONSE_START} and {_RESPONSE_END}."""

_SCHEMA_HEAD = """# Answer format

Answer with one JSON value that is valid against this JSON Schema, and with nothing else:
<schema>
"""
_SCHEMA_TAIL = """
</schema>"""


def render_as_text(
    messages: Sequence[JsonObject],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    response_schema: Mapping[str, Any] | None,
    rewrite_history: bool,
) -> list[JsonObject]:
    """Return messages with tools and schema in the system text; does not apply a template.

    Args:
        messages: normalised messages (their content is text).
        tools: definitions to write into the system message; None or empty writes none.
        response_schema: schema to write after them; None writes none.
        rewrite_history: also turn `tool_calls` and tool results into text. Off for a template
            that renders them itself.
    """
    turns = list(messages)
    sections = []
    if tools:
        sections.append(render_tools(tools))
    if response_schema is not None:
        sections.append(render_schema(response_schema))
    if sections:
        turns = _with_system_sections(turns, sections)
    return _history_as_text(turns) if rewrite_history else turns


def render_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the tools section: one definition a line, in the given order."""
    return _TOOLS_HEAD + "\n".join(_json(tool) for tool in tools) + _TOOLS_TAIL


def render_schema(schema: Mapping[str, Any]) -> str:
    """Return the answer-format section."""
    return _SCHEMA_HEAD + _json(schema) + _SCHEMA_TAIL


def render_tool_call(name: str, arguments: str) -> str:
    """Return one call as the model is asked to write it; `arguments` stays byte for byte."""
    return f'{CALL_START}\n{{"name": {_json(name)}, "arguments": {arguments}}}\n{CALL_END}'


def parse_arguments(message: JsonObject) -> JsonObject:
    """Return the message with each call's `arguments` as an object, not as a JSON string.

    For templates that render calls themselves: they expect objects, as vLLM gives them. Arguments
    that are no JSON object stay a string.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    return {**message, "tool_calls": [_with_object_arguments(call) for call in calls]}


def _with_object_arguments(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return call
    if not isinstance(value, dict):
        return call
    return {**call, "function": {**function, "arguments": value}}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_system_sections(turns: list[JsonObject], sections: list[str]) -> list[JsonObject]:
    if turns[0]["role"] == "system":
        text = str(turns[0]["content"])
        head = {**turns[0], "content": "\n\n".join([text, *sections] if text else sections)}
        return [head, *turns[1:]]
    return [{"role": "system", "content": "\n\n".join(sections)}, *turns]


def _history_as_text(turns: Sequence[JsonObject]) -> list[JsonObject]:
    """Turn calls into assistant text and runs of tool results into one user turn each."""
    result: list[JsonObject] = []
    follows_tool = False
    for index, turn in enumerate(turns):
        is_tool = turn["role"] == "tool"
        if not is_tool:
            result.append(_calls_as_text(turn, index))
        elif follows_tool:
            result[-1] = {
                "role": "user",
                "content": f"{result[-1]['content']}\n{_response(turn)}",
            }
        else:
            result.append({"role": "user", "content": _response(turn)})
        follows_tool = is_tool
    return result


def _response(turn: JsonObject) -> str:
    return f"{_RESPONSE_START}\n{turn['content']}\n{_RESPONSE_END}"


def _calls_as_text(turn: JsonObject, index: int) -> JsonObject:
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    where = f"messages[{index}].tool_calls"
    if not isinstance(calls, list):
        raise BadRequest(f"`{where}` must be a list.", param=where)
    text = str(turn["content"])
    if text and not text.endswith("\n"):
        text += "\n"
    lines = [_call_as_text(call, f"{where}[{at}]") for at, call in enumerate(calls)]
    rest = {key: value for key, value in turn.items() if key != "tool_calls"}
    return {**rest, "content": text + "\n".join(lines)}


def _call_as_text(call: object, where: str) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise BadRequest(f"`{where}.function.name` must be a string.", param=where)
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise BadRequest(
            f"`{where}.function.arguments` must be a string that holds JSON.", param=where
        )
    return render_tool_call(name, arguments or "{}")
