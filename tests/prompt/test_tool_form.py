"""The text form of tools, schemas, calls and results is stable and replays what was generated."""

import json
import os
import subprocess
import sys

import pytest

from headstart.errors import BadRequest
from headstart.prompt.messages import normalise_messages
from headstart.prompt.tool_calls import parse_tool_calls
from headstart.prompt.tool_form import render_as_text, render_schema, render_tool_call, render_tools

TOOLS = [
    {"type": "function", "function": {"name": "b", "parameters": {"z": 1, "a": "é"}}},
    {"type": "function", "function": {"name": "a"}},
]


def rendered(messages, tools=None, schema=None):
    return render_as_text(
        normalise_messages(messages), tools=tools, response_schema=schema, rewrite_history=True
    )


def call(name, arguments):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_each_tool_is_one_line_in_the_given_order_with_its_own_key_order():
    lines = render_tools(TOOLS).splitlines()
    start = lines.index("<tools>")
    assert lines[start + 1] == (
        '{"type": "function", "function": {"name": "b", "parameters": {"z": 1, "a": "é"}}}'
    )
    assert lines[start + 2] == '{"type": "function", "function": {"name": "a"}}'
    assert lines[start + 3] == "</tools>"


def test_the_schema_is_one_line():
    lines = render_schema({"type": "object", "properties": {}}).splitlines()
    assert lines[lines.index("<schema>") + 1] == '{"type": "object", "properties": {}}'


def test_without_tools_schema_and_calls_nothing_changes():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert rendered(messages) == messages
    assert rendered(messages, tools=[]) == messages


def test_tools_follow_the_system_text():
    first, second = rendered(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], tools=TOOLS
    )
    assert first == {"role": "system", "content": f"s\n\n{render_tools(TOOLS)}"}
    assert second == {"role": "user", "content": "u"}


def test_without_a_system_message_one_is_added():
    first, _ = rendered([{"role": "user", "content": "u"}], schema={"type": "object"})
    assert first == {"role": "system", "content": render_schema({"type": "object"})}


def test_a_new_question_leaves_the_text_before_it_alone():
    head = [{"role": "system", "content": "s"}]
    one = rendered([*head, {"role": "user", "content": "1"}], tools=TOOLS, schema={})
    two = rendered([*head, {"role": "user", "content": "2"}], tools=TOOLS, schema={})
    assert one[0] == two[0]


def test_arguments_are_replayed_byte_for_byte():
    arguments = '{"b" :1,"a":  "\\u00e9"}'
    turns = rendered([{"role": "assistant", "content": None, "tool_calls": [call("f", arguments)]}])
    assert turns == [
        {
            "role": "assistant",
            "content": f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>',
        }
    ]


def test_a_generated_turn_that_was_parsed_is_rendered_back_to_the_same_text():
    generated = (
        "I will look.\n" + render_tool_call("f", '{"q":"x"}') + "\n" + render_tool_call("g", "{}")
    )
    text, calls = parse_tool_calls(generated)
    message = {
        "role": "assistant",
        "content": text,
        "tool_calls": [call(found.name, found.arguments) for found in calls],
    }
    assert rendered([message])[0]["content"] == generated


def test_a_run_of_results_is_one_user_turn():
    turns = rendered(
        [
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": "two"},
            {"role": "user", "content": "and?"},
            {"role": "tool", "tool_call_id": "3", "content": "three"},
        ]
    )
    assert turns == [
        {
            "role": "user",
            "content": "<tool_response>\none\n</tool_response>\n"
            "<tool_response>\ntwo\n</tool_response>",
        },
        {"role": "user", "content": "and?"},
        {"role": "user", "content": "<tool_response>\nthree\n</tool_response>"},
    ]


@pytest.mark.parametrize(
    "tool_calls",
    ["text", [1], [{"function": {}}], [{"function": {"name": "f", "arguments": {"a": 1}}}]],
)
def test_calls_of_another_shape_are_refused_by_name(tool_calls):
    with pytest.raises(BadRequest, match=r"messages\[0\]\.tool_calls"):
        rendered([{"role": "assistant", "tool_calls": tool_calls}])


def test_the_bytes_are_the_same_in_every_process():
    program = (
        "import hashlib, json\n"
        "from headstart.prompt.tool_form import render_tools, render_schema\n"
        f"text = render_tools(json.loads({json.dumps(TOOLS)!r}))\n"
        "print(hashlib.sha256((text + render_schema({'b': 1, 'a': 2})).encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1
