"""Tokenizers from a model's files."""

import json
from datetime import datetime

import pytest

from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.errors import ConfigError
from tiny_model import CHAT_TEMPLATE
from token_vocabularies import LLAMA3_TEMPLATE, llama3_like, write_model_folder

NOW = datetime(2026, 11, 30)
CHAT = {"messages": [{"role": "user", "content": "Hello there"}]}
TOOL = {"type": "function", "function": {"name": "f"}}
BOS = "<|begin_of_text|>"


def ids(tokenizer, body, is_chat=True):
    return tokenizer.token_ids(body, is_chat=is_chat, now=NOW)


def load(path, dialect="vllm", **options):
    return load_tokenizer(TokenizerConfig(str(path), **options), dialect)


@pytest.fixture
def folder(tmp_path):
    return write_model_folder(tmp_path / "model", llama3_like(), LLAMA3_TEMPLATE, bos_token=BOS)


def test_a_models_folder_is_enough(folder):
    """Template, special tokens and vocabulary; BOS comes from the template, and of plain text from
    the tokenizer."""
    backend = llama3_like()
    text = f"{BOS}<|start_header_id|>user<|end_header_id|>\n\nHello there<|eot_id|>"
    text += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    expected = backend.encode(text, add_special_tokens=False).ids
    for path in (folder, folder / "tokenizer.json"):
        assert ids(load(path), CHAT) == expected
        assert ids(load(path), {"prompt": "Hello"}, False) == backend.encode("Hello").ids
    assert load(folder).special_texts


def test_a_template_in_a_file_of_its_own_wins(folder):
    """As newer models have it, with one for tools beside it."""
    (folder / "chat_template.jinja").write_text("plain")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    backend, tokenizer = llama3_like(), load(folder)
    assert ids(tokenizer, CHAT) == backend.encode("plain", add_special_tokens=False).ids
    with_tools = ids(tokenizer, {**CHAT, "tools": [TOOL]})
    assert with_tools == backend.encode("tools", add_special_tokens=False).ids


def test_named_templates_are_chosen_by_tools(tmp_path):
    """As older models with two have them."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = write_model_folder(tmp_path, llama3_like(), None, chat_template=named)
    backend, tokenizer = llama3_like(), load(folder)
    assert ids(tokenizer, CHAT) == backend.encode("plain", add_special_tokens=False).ids
    with_tools = ids(tokenizer, {**CHAT, "tools": [TOOL]})
    assert with_tools == backend.encode("tools", add_special_tokens=False).ids


def test_the_operators_template_replaces_the_models(folder, tmp_path):
    """As `vllm serve --chat-template` does."""
    file = tmp_path / "own.jinja"
    file.write_text("own")
    own = llama3_like().encode("own", add_special_tokens=False).ids
    assert ids(load(folder, chat_template=str(file)), CHAT) == own


def test_a_content_format_can_be_given(folder, tmp_path):
    """As `--chat-template-content-format` does."""
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages[0].content is string }}")
    encode = llama3_like().encode
    for shape, seen in (("string", "True"), ("openai", "False")):
        tokenizer = load(folder, chat_template=str(file), content_format=shape)
        assert ids(tokenizer, CHAT) == encode(seen, add_special_tokens=False).ids


def test_tokens_that_only_the_settings_name_are_added(tmp_path):
    """With the next ids, as Hugging Face adds them."""
    added = {"9999": {"content": "<|new|>", "normalized": False, "special": True}}
    folder = write_model_folder(
        tmp_path, llama3_like(), "<|new|>{{ pad_token }}", added_tokens_decoder=added,
        pad_token={"content": "<|pad|>"},
    )  # fmt: skip
    size = llama3_like().get_vocab_size()
    assert ids(load(folder), CHAT) == [size, size + 1]


def test_a_gguf_file_is_enough(tiny_gguf, tmp_path):
    """By its name, or as the only one of its folder."""
    (tmp_path / "model.gguf").symlink_to(tiny_gguf)
    found = ids(load(tiny_gguf, "embedded"), CHAT)
    assert found == ids(load(tmp_path, "embedded"), CHAT)
    assert found[0] == 1
    assert ids(load(tiny_gguf), {"prompt": "the"}, False) == ids(
        load(tiny_gguf), {"prompt": "the", "add_special_tokens": False}, False
    )


def test_a_model_without_a_template_counts_completions_only(tmp_path):
    """Chat is unknown, and no error: its engine may have been given a template of its own."""
    tokenizer = load(write_model_folder(tmp_path, llama3_like(), None))
    assert ids(tokenizer, CHAT) is None
    assert ids(tokenizer, {"prompt": "x"}, False)


def test_padding_and_truncation_of_the_file_are_off(tmp_path):
    """They are for training."""
    backend = llama3_like()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = load(write_model_folder(tmp_path, backend, CHAT_TEMPLATE))
    text = "one two three four five six seven"
    assert ids(tokenizer, {"prompt": text}, False) == llama3_like().encode(text).ids


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda folder: folder / "nowhere", "nowhere is no file"),
        (lambda folder: folder / "no.gguf", "no.gguf"),
        (lambda folder: folder.mkdir() or folder, "has no tokenizer.json"),
    ],
)
def test_what_is_not_there_is_named_with_what_to_do(tmp_path, make, named):
    """An operator's mistake is told before a request is."""
    with pytest.raises(ConfigError, match=named) as caught:
        load(make(tmp_path / "model"))
    assert "`tokenizer`" in caught.value.message
    assert caught.value.param == "tokenizer"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json"),
        ("chat_template.jinja", "{% for %}", "cannot be parsed"),
    ],
)
def test_a_damaged_file_is_named(folder, name, content, named):
    """Each of them."""
    (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=named):
        load(folder)


def test_a_template_that_is_not_there_is_named(folder):
    """It is not replaced by the model's own in silence."""
    with pytest.raises(ConfigError, match=r"gone\.jinja") as caught:
        load(folder, chat_template=str(folder / "gone.jinja"))
    assert caught.value.param == "chat_template"


def test_settings_that_are_no_object_count_as_none(folder):
    """As a missing file does."""
    (folder / "tokenizer_config.json").write_text(json.dumps([1]))
    assert ids(load(folder), CHAT) is None
