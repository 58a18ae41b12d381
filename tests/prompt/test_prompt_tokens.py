"""From bodies to the text that an engine tokenises."""

from datetime import datetime

import pytest

from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.prompt_tokens import PROMPT_FIELDS, PromptReader, PromptText
from tiny_model import CHAT_TEMPLATE
from token_vocabularies import LLAMA3_TEMPLATE

NOW = datetime(2026, 11, 30, 12)
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
SHOW_VARIABLES = (
    "{{ messages[0].content }}|{{ add_generation_prompt }}|{{ documents }}|{{ tools }}|"
    "{{ enable_thinking }}|{{ reasoning_effort }}|{{ bos_token }}|{{ x }}"
)


def reader(source=SHOW_VARIABLES, **options):
    options.setdefault("special_tokens", {"bos_token": "<s>"})
    return PromptReader(ChatTemplate(source, bos_token="<s>"), **options)


def chat(body, source=SHOW_VARIABLES, **options):
    found = reader(source, **options).read({"messages": [USER], **body}, is_chat=True, now=NOW)
    return None if found is None else found.text


def completion(body):
    return reader().read(body, is_chat=False, now=NOW)


def test_a_template_sees_vllms_defaults():
    """A generation prompt; documents and tools that are defined and null."""
    assert chat({}) == "Hi|True|None|None|||<s>|"


def test_a_request_sets_variables_by_its_own_fields_and_by_template_kwargs():
    """The fields win; null and "auto" set nothing."""
    body = {
        "chat_template_kwargs": {"x": 1, "documents": [1], "add_generation_prompt": True},
        "add_generation_prompt": False,
        "documents": [{"text": "d"}],
    }
    assert chat(body) == "Hi|False|[{'text': 'd'}]|None|||<s>|1"
    assert chat({"chat_template_kwargs": {"x": None}}) == "Hi|True|None|None|||<s>|"


def test_the_operators_defaults_hold_where_a_request_says_nothing():
    """As `vllm serve --default-chat-template-kwargs` has it."""
    options = {"defaults": {"x": 1, "enable_thinking": False}}
    assert chat({}, **options) == "Hi|True|None|None|False||<s>|1"
    assert chat({"chat_template_kwargs": {"x": 2}}, **options) == "Hi|True|None|None|False||<s>|2"
    assert "True|low" in chat({"reasoning_effort": "low"}, **options)


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ({"reasoning_effort": "low"}, "True|low"),
        ({"reasoning_effort": "none"}, "False|none"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "False|low",
        ),
    ],
)
def test_an_effort_turns_thinking_on_or_off(body, seen):
    """Unless the request says itself."""
    assert seen in chat(body)


def test_names_that_the_renderer_keeps_for_itself_never_reach_the_template():
    """Hugging Face's function has parameters of those names."""
    assert chat({"chat_template_kwargs": {"padding": 5}}, "{{ padding }}!") == "!"
    assert chat({"chat_template_kwargs": {"tokenize": True}}) is None


def test_a_model_with_two_templates_uses_one_for_tools():
    """As Hugging Face chooses among named ones."""
    two = {"tool_template": ChatTemplate("with tools")}
    assert chat({}, "without", **two) == "without"
    assert chat({"tools": [TOOL]}, "without", **two) == "with tools"


def test_definitions_and_calls_are_in_vllms_shape():
    """Printed as JSON, to the byte."""
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    text = chat({"messages": messages, "tools": [TOOL]}, LLAMA3_TEMPLATE)
    assert '{"arguments": {"a": 1}, "name": "f"}' in text
    assert '"function": {"name": "f", "description": null, "parameters": null}' in text


def test_a_message_can_be_continued():
    """The text ends where the message does, without what the template trims."""
    messages = [USER, {"role": "assistant", "content": "Well, "}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert chat(body, CHAT_TEMPLATE).endswith("<|im_start|>assistant\nWell, ")
    assert chat(body, LLAMA3_TEMPLATE).endswith("<|end_header_id|>\n\nWell,")
    assert chat({**body, "add_generation_prompt": True}, CHAT_TEMPLATE) is None


def test_parts_can_be_continued():
    """The last of them."""
    source = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "assistant", "content": parts}], "add_generation_prompt": False}
    assert chat({**body, "continue_final_message": True}, source) == "[a][b"
    empty = {"messages": [{"role": "assistant", "content": []}], "add_generation_prompt": False}
    assert chat({**empty, "continue_final_message": True}, source) is None


@pytest.mark.parametrize("name", ["chat_template", "truncate_prompt_tokens", "prompt_embeds"])
def test_a_field_that_changes_more_than_the_text_makes_it_unknown(name):
    """The engine's tokens depend on what is not in the body."""
    assert chat({name: 5}) is None
    assert chat({name: None}) is not None
    assert name in PROMPT_FIELDS


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": "x"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"tools": []},
    ],
)
def test_what_cannot_be_rendered_is_unknown(body):
    """Images, and what the engine refuses: it says why."""
    assert chat(body) is None


def test_half_a_character_is_unknown():
    """JSON can write it in a call's arguments; no engine tokenises it."""
    function = {"name": "f", "arguments": '{"a": "\\ud800"}'}
    messages = [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]
    assert chat({"messages": messages}, LLAMA3_TEMPLATE) is None


def test_a_template_that_refuses_or_fails_makes_it_unknown():
    """Its error is the engine's to tell."""
    assert chat({}, "{{ raise_exception('no system role') }}") is None
    assert chat({}, "{{ 1 / 0 }}") is None


def test_no_template_no_chat():
    """A model without one serves completions only."""
    bare = PromptReader(None)
    assert bare.read({"messages": [USER]}, is_chat=True, now=NOW) is None
    assert bare.read({"prompt": "x"}, is_chat=False, now=NOW) is not None


def test_templates_that_ask_get_the_time():
    """And the reader says that they do."""
    source = "{{ strftime_now('%d %b %Y') }}"
    assert chat({}, source) == "30 Nov 2026"
    assert reader(source).reads_clock
    assert not reader().reads_clock


def test_the_embedded_engine_renders_in_its_own_way():
    """Tools and the answer's schema go into the system text of a template without a place."""
    schema = {"type": "json_schema", "json_schema": {"schema": {"title": "Answer"}}}
    body = {"tools": [TOOL], "response_format": schema}
    text = chat(body, CHAT_TEMPLATE, dialect="embedded")
    assert "# Tools" in text
    assert '{"title": "Answer"}' in text
    assert "# Tools" not in chat(body, CHAT_TEMPLATE)
    assert chat({"chat_template_kwargs": {"now": 1}}, dialect="embedded") is None
    assert chat({"tools": 5}, dialect="embedded") is None


def test_chat_text_gets_no_special_tokens_unless_asked():
    """The template writes them."""
    body = {"messages": [USER]}
    assert not reader().read(body, is_chat=True, now=NOW).adds_special
    asked = {**body, "add_special_tokens": True}
    assert reader().read(asked, is_chat=True, now=NOW).adds_special


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "x"}, PromptText("x", adds_special=True)),
        ({"prompt": ["x"]}, PromptText("x", adds_special=True)),
        ({"prompt": "x", "add_special_tokens": False}, PromptText("x")),
        ({"prompt": [1, 2]}, PromptText(token_ids=(1, 2))),
        ({"prompt": [[1, 2]]}, PromptText(token_ids=(1, 2))),
        ({"prompt": ["x", "y"]}, None),
        ({"prompt": [[1], [2]]}, None),
        ({"prompt": [-1]}, None),
        ({"prompt": [True]}, None),
        ({"prompt": []}, None),
        ({"prompt": {}}, None),
        ({}, None),
    ],
)
def test_a_completions_prompt_is_text_or_ids(body, expected):
    """One of them; of several none is the request's."""
    assert completion(body) == expected
