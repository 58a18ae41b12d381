"""Static token counts: what every prompt of a version has in common, and no more."""

from pathlib import Path

import pytest

from headstart.engines.embedded.gguf import load_gguf, load_tokenizer
from headstart.errors import TemplateError
from headstart.prompt.assembly import assemble
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.tokenizer import Tokenizer
from headstart.templates.static_tokens import count_static_tokens, static_token_count
from template_folder import SMALL, load_support, load_version
from tiny_model import CHAT_TEMPLATE

_TOOLS_FIRST = (
    "{% if tools %}<|im_start|>tools{{ tools | tojson }}<|im_end|>{% endif %}" + CHAT_TEMPLATE
)


@pytest.fixture(scope="module")
def tokenizer(tiny_gguf: Path) -> Tokenizer:
    return load_tokenizer(tiny_gguf)


@pytest.fixture(scope="module")
def chat_template(tiny_gguf: Path) -> ChatTemplate:
    return ChatTemplate(load_gguf(tiny_gguf).chat_template or "")


def test_the_count_ends_where_the_question_begins(
    tmp_path: Path, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    version = load_version(tmp_path, SMALL)
    static = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    count = static_token_count(version, tokenizer, chat_template)
    assert count == len(tokenizer.encode(static))
    prompt = assemble(version.prepared, {"question": "Why?"})
    token_ids = tokenizer.encode(chat_template.render(prompt.messages))
    assert token_ids[:count] == tokenizer.encode(static)


def test_the_segments_add_up_to_the_whole(
    tmp_path: Path, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    version = load_support(tmp_path)
    tokens = count_static_tokens(version, tokenizer, chat_template)
    assert tokens.total == static_token_count(version, tokenizer, chat_template)
    assert sum(count for _, count in tokens.by_segment) == tokens.total
    assert [name for name, _ in tokens.by_segment] == ["policy", "tools", "answer", "examples"]
    assert min(count for _, count in tokens.by_segment) > 0


def test_where_the_tools_land_is_the_chat_templates_business(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    version = load_support(tmp_path)
    tools_first = ChatTemplate(_TOOLS_FIRST)
    assert tools_first.renders_tools
    tokens = count_static_tokens(version, tokenizer, tools_first)
    assert dict(tokens.by_segment)["tools"] > 100
    assert sum(count for _, count in tokens.by_segment) == tokens.total


def test_a_prompt_that_never_changes_counts_as_a_whole(
    tmp_path: Path, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    text = "id: t\nmodel: m\nsegments:\n  - {name: a, role: user, kind: static, text: Go}\n"
    version = load_version(tmp_path, text)
    rendered = chat_template.render([{"role": "user", "content": "Go"}])
    assert static_token_count(version, tokenizer, chat_template) == len(tokenizer.encode(rendered))


def test_a_template_without_static_segments_has_what_the_chat_template_puts_in_front(
    tmp_path: Path, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    text = """\
id: t
model: m
variables: {q: {kind: dynamic}}
segments:
  - {name: q, role: user, kind: dynamic, text: "{{ q }}"}
"""
    version = load_version(tmp_path, text)
    assert count_static_tokens(version, tokenizer, chat_template).by_segment == ()
    front = "<|im_start|>system\nYou are a tiny test model<|im_end|>\n<|im_start|>user\n"
    assert static_token_count(version, tokenizer, chat_template) == len(tokenizer.encode(front))


def test_the_first_message_that_changes_may_be_any_whose_text_can_be_empty(
    tmp_path: Path, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    text = """\
id: t
model: m
variables: {note: {kind: session}, q: {kind: dynamic}}
segments:
  - {name: policy, role: system, kind: static, text: Be brief.}
  - {name: note, role: system, kind: session, text: "{{ note }}"}
  - {name: q, role: user, kind: dynamic, text: "{{ q }}"}
"""
    version = load_version(tmp_path, text)
    count = static_token_count(version, tokenizer, chat_template)
    prompts = []
    for note in ("", "Speak French."):
        prompt = assemble(version.prepared, {"note": note, "q": "Why?"})
        prompts.append(tokenizer.encode(chat_template.render(prompt.messages)))
    assert prompts[0][:count] == prompts[1][:count]


def test_a_chat_template_that_writes_the_date_can_be_counted(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    dated = ChatTemplate("{{ strftime_now('%d %b %Y') }}" + CHAT_TEMPLATE)
    assert static_token_count(load_version(tmp_path, SMALL), tokenizer, dated) > 10


def test_a_chat_template_that_refuses_says_so(tmp_path: Path, tokenizer: Tokenizer) -> None:
    strict = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        static_token_count(load_version(tmp_path, SMALL), tokenizer, strict)
