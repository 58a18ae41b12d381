"""The claim that pays for everything: the static prefix is the same, in bytes and in tokens.

Across processes, hash seeds, locales of the machine, variable values and histories.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.engines.embedded.gguf import load_gguf, load_tokenizer
from headstart.prompt.assembly import AssembledPrompt, assemble
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.tokenizer import Tokenizer
from headstart.templates import TemplateVersion
from headstart.templates.static_tokens import static_token_count
from template_folder import load_support

_PROGRAM = """
import hashlib, json, sys
from pathlib import Path
from headstart.engines.embedded.gguf import load_gguf, load_tokenizer
from headstart.prompt.chat_template import ChatTemplate
from headstart.templates import TemplateSet, apply_template

folder, model, question, documents = sys.argv[1:]
templates = TemplateSet.load(Path(folder))
variables = {"question": question, "now": question[::-1], "documents": json.loads(documents)}
body = {"prompt": {"id": "support", "variables": variables}}
applied = apply_template(body, templates)
sent = json.loads(applied.body)
text = ChatTemplate(load_gguf(Path(model)).chat_template).render(
    sent["messages"],
    tools=sent["tools"],
    response_schema=sent["response_format"]["json_schema"]["schema"],
)
prefix = applied.body[: applied.plan.static_end_byte]
print(json.dumps({
    "bytes": hashlib.sha256(prefix).hexdigest(),
    "token_ids": load_tokenizer(Path(model)).encode(text),
    "label": applied.template_label,
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("support")


@pytest.fixture(scope="module")
def support(folder: Path) -> TemplateVersion:
    return load_support(folder)


@pytest.fixture(scope="module")
def tokenizer(tiny_gguf: Path) -> Tokenizer:
    return load_tokenizer(tiny_gguf)


@pytest.fixture(scope="module")
def chat_template(tiny_gguf: Path) -> ChatTemplate:
    source = load_gguf(tiny_gguf).chat_template
    assert source is not None
    return ChatTemplate(source)


def _token_ids(
    prompt: AssembledPrompt, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> list[int]:
    assert prompt.response_format_json is not None
    schema = json.loads(prompt.response_format_json)["json_schema"]["schema"]
    text = chat_template.render(prompt.messages, tools=prompt.tools, response_schema=schema)
    return tokenizer.encode(text)


def test_bytes_and_tokens_are_the_same_in_every_process(
    folder: Path,
    support: TemplateVersion,
    tiny_gguf: Path,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate,
) -> None:
    length = static_token_count(support, tokenizer, chat_template)
    runs = [
        _in_a_process(folder, tiny_gguf, seed=seed, question=question, documents=documents)
        for seed, question, documents in (
            ("0", "Why?", []),
            ("1", "{{ now }}\nand then", [{"id": "b", "text": "B"}, {"id": "a", "text": "A"}]),
            ("4711", "你好", [{"id": "x", "text": ""}]),
        )
    ]
    assert {run["bytes"] for run in runs} == {support.static_prefix_hash.removeprefix("sha256:")}
    assert {run["label"] for run in runs} == {support.label}
    assert len({tuple(run["token_ids"][:length]) for run in runs}) == 1


def _in_a_process(
    folder: Path, model: Path, *, seed: str, question: str, documents: list[dict[str, str]]
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, folder, model, question, json.dumps(documents)],
        env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C"},
        check=True,
        capture_output=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_history = st.lists(_text, max_size=4).map(
    lambda texts: [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
)


@settings(deadline=None)
@given(question=_text, now=_text, documents=st.lists(_text, max_size=2), history=_history)
def test_bytes_and_tokens_are_the_same_for_all_values(
    support: TemplateVersion,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate,
    question: str,
    now: str,
    documents: list[str],
    history: list[dict[str, str]],
) -> None:
    prompt = assemble(
        support.prepared,
        {
            "question": question,
            "now": now,
            "documents": [{"id": str(i), "text": text} for i, text in enumerate(documents)],
        },
        [json.dumps(turn).encode() for turn in history],
    )
    prefix = prompt.body_head[: prompt.plan.static_end_byte]
    assert "sha256:" + hashlib.sha256(prefix).hexdigest() == support.static_prefix_hash
    reference = assemble(support.prepared, {"question": "", "now": "", "documents": []})
    length = static_token_count(support, tokenizer, chat_template)
    token_ids = _token_ids(prompt, tokenizer, chat_template)
    assert token_ids[:length] == _token_ids(reference, tokenizer, chat_template)[:length]
