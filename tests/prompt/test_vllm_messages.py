"""Messages and tools as vLLM hands them to a template."""

import json

import pytest

from headstart.prompt.vllm_messages import vllm_messages, vllm_tools

TEXT_PARTS = [{"type": "text", "text": text} for text in ("a", "", "b")]


def one(message, shape="string"):
    found = vllm_messages([message], shape)
    assert found is not None
    return found[0]


def test_parts_are_joined_by_newlines_for_a_template_that_reads_strings():
    """Empty ones leave no line."""
    assert one({"role": "user", "content": TEXT_PARTS})["content"] == "a\nb"


def test_text_becomes_parts_for_a_template_that_loops_over_them():
    """A string is one part; null is none."""
    assert one({"role": "user", "content": TEXT_PARTS}, "openai")["content"] == TEXT_PARTS
    assert one({"role": "user", "content": "x"}, "openai")["content"] == [
        {"type": "text", "text": "x"}
    ]
    assert one({"role": "user", "content": None}, "openai")["content"] == []
    assert one({"role": "user", "content": None})["content"] == ""


def test_parts_keep_fields_that_vllm_does_not_know():
    """And lose their own kind of text."""
    parts = [
        {"type": "refusal", "refusal": "no", "uuid": None},
        {"cache_control": {"type": "ephemeral"}, "type": "input_text", "text": "x"},
    ]
    assert one({"role": "user", "content": parts}, "openai")["content"] == [
        {"type": "text", "text": "no"},
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
    ]


def test_a_tools_answer_is_always_a_string():
    """Most templates can print no other."""
    message = {"role": "tool", "content": TEXT_PARTS, "tool_call_id": "1", "name": "f", "x": 1}
    for shape in ("string", "openai"):
        turn = one(message, shape)
        assert isinstance(turn["content"], str)
        assert {"tool_call_id": "1", "name": "f"}.items() <= turn.items()
        assert "x" not in turn


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ('{"b": 1,  "a": [2.50]}', {"b": 1, "a": [2.5]}),
        ("", {}),
        (None, {}),
        ("[1]", {}),
        ("{oops", {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_are_objects(given, seen):
    """What a model wrote as JSON is parsed; what is no object becomes an empty one."""
    call = {"type": "function", "id": "7", "function": {"name": "f", "arguments": given}}
    (rebuilt,) = one({"role": "assistant", "tool_calls": [call]})["tool_calls"]
    assert rebuilt["function"]["arguments"] == seen


def test_a_call_has_its_keys_in_the_order_of_openais_types():
    """Templates print calls as JSON; what those types do not have comes last."""
    call = {"index": 0, "type": "function", "function": {"x": 1, "name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [{**call, "id": "7"}]}
    (rebuilt,) = one(message)["tool_calls"]
    assert json.dumps(rebuilt) == (
        '{"id": "7", "function": {"arguments": {}, "name": "f", "x": 1}, '
        '"type": "function", "index": 0}'
    )


def test_no_calls_are_no_list_of_calls():
    """A template may take an empty list for calls."""
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": []})


def test_reasoning_has_both_its_names():
    """Templates read either."""
    for name in ("reasoning", "reasoning_content"):
        turn = one({"role": "assistant", "content": "x", name: "because"})
        assert turn["reasoning"] == turn["reasoning_content"] == "because"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        ["text"],
        [{"content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": ["text"]}]}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": ["text"]}],
        [{"role": "assistant", "tool_calls": ["x"]}],
        [{"role": "assistant", "tool_calls": {"x": 1}}],
    ],
)
def test_what_cannot_be_known_is_none(messages):
    """Images, and what vLLM refuses."""
    assert vllm_messages(messages, "string") is None


def test_a_definition_has_vllms_fields_and_no_other():
    """In its order, null where the client said nothing, but for those that few templates know."""
    given = {"strict": True, "x": 1, "parameters": {"b": 1, "a": 2}, "name": "f"}
    (tool,) = vllm_tools([{"function": given, "type": "function", "y": 1}])
    assert json.dumps(tool) == (
        '{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"b": 1, "a": 2}, "strict": true}}'
    )
    assert vllm_tools(None) is None


def test_a_deferred_definition_says_so_in_both_places():
    """As vLLM copies it down."""
    (tool,) = vllm_tools([{"function": {"name": "f"}, "defer_loading": True}])
    assert tool["defer_loading"] is True
    assert list(tool["function"]) == ["name", "description", "parameters", "defer_loading"]


def test_a_developers_text_is_system_text_for_a_template_without_the_role():
    """Then there is one system message, at the front."""
    messages = [
        {"role": "user", "content": "u"},
        {"role": "developer", "content": "d", "tools": []},
        {"role": "system", "content": TEXT_PARTS},
    ]
    assert vllm_messages(messages, "string", knows_developer=False) == [
        {"role": "system", "content": "d\n\na\nb"},
        {"role": "user", "content": "u"},
    ]
    assert vllm_messages(messages, "openai", knows_developer=False)[0]["content"] == "d\n\na\n\nb"
    (first,) = vllm_messages(messages[1:2], "string", knows_developer=False)
    assert first == {"role": "system", "content": "d"}
    assert one(messages[1]) == {"role": "developer", "content": "d", "tools": []}


def test_a_line_that_changes_with_every_request_is_taken_out_of_system_text():
    """As vLLM does for its cache's sake; of a user's text it is not."""
    line = "x-anthropic-billing-header: cch=1;"
    assert one({"role": "system", "content": f"{line}\nrest"})["content"] == "rest"
    assert (
        one(
            {"role": "system", "content": [{"type": "text", "text": text} for text in (line, "b")]}
        )["content"]
        == "b"
    )
    assert one({"role": "user", "content": line})["content"] == line


@pytest.mark.parametrize("tools", [[], {}, ["f"], [{"function": {}}], [{"name": "f"}]])
def test_definitions_that_vllm_refuses_are_refused(tools):
    """It answers 400."""
    with pytest.raises(ValueError, match="tools"):
        vllm_tools(tools)
