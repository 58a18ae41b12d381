"""Messages become the text that Hugging Face's own rendering would give, tools and schema too."""

from datetime import datetime

import pytest
from jinja2.exceptions import SecurityError

from headstart.errors import BadRequest, TemplateError
from headstart.prompt.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_TOOLS = (
    "{%- if tools %}\n"
    "    {%- for tool in tools %}\n"
    "        {{- tool | tojson }}\n"
    "    {%- endfor %}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {{- '[' + message.role + ']' + message.content }}\n"
    "    {%- for call in message.tool_calls or [] %}\n"
    "        {{- call.function.name + '(' + (call.function.arguments | tojson) + ')' }}\n"
    "    {%- endfor %}\n"
    "{%- endfor %}\n"
)
USER = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find <b> & 'é'",
        "parameters": {"type": "object"},
    },
}


def test_roles_and_text_land_where_the_template_says():
    assert ChatTemplate(CHATML).render(USER) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out():
    assert ChatTemplate(CHATML).render(USER, add_generation_prompt=False).endswith("Hi<|im_end|>\n")


def test_text_parts_are_joined_by_a_newline():
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    text = ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": content}])
    assert text == "a\nb"


def test_null_content_is_empty_text():
    assert ChatTemplate("{{ messages[0].content }}|").render([{"role": "user"}]) == "|"


def test_a_developer_message_is_a_system_message():
    text = ChatTemplate("{{ messages[0].role }}").render([{"role": "developer", "content": "x"}])
    assert text == "system"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages"),
        (["text"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "image_url",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "no text"),
    ],
)
def test_messages_that_are_not_text_are_refused_by_name(messages, named):
    with pytest.raises(BadRequest) as raised:
        ChatTemplate(CHATML).render(messages)
    assert named in raised.value.message


def test_whether_a_template_renders_tools_is_found_by_rendering():
    assert not ChatTemplate(CHATML).renders_tools
    assert ChatTemplate(WITH_TOOLS).renders_tools
    assert not ChatTemplate("{# tools #}{{ messages[0].content }}").renders_tools


def test_a_template_that_insists_on_a_first_user_message_is_probed_too():
    source = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
        "{{ tools | tojson }}"
    )
    assert ChatTemplate(source).renders_tools


def test_a_template_with_a_place_for_tools_gets_them_as_they_are():
    text = ChatTemplate(WITH_TOOLS).render(USER, tools=[TOOL])
    assert text.startswith('{"type": "function", "function": {"name": "search", "description":')
    assert "Find <b> & 'é'" in text
    assert text.endswith("[user]Hi")


def test_a_template_with_a_place_for_calls_gets_arguments_as_objects():
    messages = [
        *USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}],
        },
    ]
    assert ChatTemplate(WITH_TOOLS).render(messages).endswith('[assistant]f({"b": 1, "a": 2})')


def test_a_template_without_a_place_gets_tools_and_schema_in_the_system_text():
    text = ChatTemplate(CHATML).render(
        [{"role": "system", "content": "Be brief."}, *USER],
        tools=[TOOL],
        response_schema={"type": "object"},
    )
    system = text.split("<|im_end|>")[0]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert system.index("# Tools") < system.index("# Answer format")
    assert '{"type": "object"}' in system


def test_a_template_with_a_place_for_the_schema_gets_it():
    template = ChatTemplate("{{ response_schema | tojson }}{{ messages[0].content }}")
    assert template.renders_schema
    assert template.render(USER, response_schema={"b": 1, "a": 2}) == '{"b": 1, "a": 2}Hi'


def test_blocks_are_trimmed_as_hugging_face_trims_them():
    assert ChatTemplate("  {% if true %}\nx\n  {% endif %}\ny").render(USER) == "x\ny"


def test_tojson_takes_the_arguments_of_hugging_faces_filter():
    template = ChatTemplate("{{ {'b': 'é<', 'a': 1} | tojson(indent=1, sort_keys=true) }}")
    assert template.render(USER) == '{\n "a": 1,\n "b": "é<"\n}'


def test_loop_controls_and_generation_blocks_are_understood():
    source = (
        "{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    messages = [{"role": "skip", "content": "a"}, {"role": "user", "content": "b"}]
    assert ChatTemplate(source).render(messages) == "b"


def test_special_tokens_and_further_variables_reach_the_template():
    template = ChatTemplate(
        "{{ bos_token }}{{ mood }}{{ eos_token }}", bos_token="<s>", eos_token="</s>"
    )
    assert template.render(USER, mood="calm") == "<s>calm</s>"


def test_a_templates_own_refusal_is_a_bad_request_with_its_words():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render(USER)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + 1 }}", "{{ messages[9].content }}", "{{ 1 / 0 }}"]
)
def test_a_template_that_fails_is_a_bad_request(source):
    with pytest.raises(TemplateError, match="refuses these messages"):
        ChatTemplate(source).render(USER)


def test_a_template_that_cannot_be_parsed_is_an_error_with_its_line():
    with pytest.raises(TemplateError, match="line 2"):
        ChatTemplate("a\n{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].__init__.__globals__ }}",
    ],
)
def test_a_hostile_template_reaches_nothing(source):
    with pytest.raises(TemplateError) as raised:
        ChatTemplate(source).render(USER)
    assert isinstance(raised.value.__cause__, SecurityError)


def test_the_time_comes_from_the_caller_only():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}")
    assert template.render(USER, now=datetime(2025, 3, 9)) == "09 Mar 2025"
    with pytest.raises(TemplateError, match="current time"):
        template.render(USER)


def test_the_messages_that_came_in_are_not_changed():
    messages = [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]
    before = repr(messages)
    ChatTemplate(CHATML).render(messages, tools=[TOOL])
    assert repr(messages) == before
