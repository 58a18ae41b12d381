"""Our rendering against vLLM's rendering server, by templates that print all they are given."""

import asyncio
import contextlib
import os
import subprocess
from datetime import datetime

import aiohttp
import msgspec
import pytest
from vllm_replica import MODEL_NAME, free_port

from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.engines.questions import Questions
from headstart.engines.tokenizers.comparison import MAX_ANSWER_BYTES, Comparison, TokenizeComparer
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.engines.tokenizers.probes import probes

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("long_run")]

STRINGS = """
{{- bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}|{{ messages | tojson }}
{%- if tools is defined %}|{{ tools | tojson }}{% endif %}
{%- if documents is defined %}|{{ documents | tojson }}{% endif %}
{{- add_generation_prompt }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ x is defined }}
{%- for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"""
PARTS = """
{%- macro show(y) %}{% for c in y %}[{{ c | tojson }}]{% endfor %}{% endmacro %}
{{- messages | tojson }}
{%- for m in messages %}<|im_start|>{{ m.role }}{{ show(m.content) }}<|im_end|>{% endfor %}"""

USER = {"role": "user", "content": "u\u2028 é \U0001f600 <b>&amp;'\""}
TEXTS = [{"type": "text", "text": text} for text in ("", "x", " y")]
FUNCTION = {
    "parameters": {"type": "object", "properties": {"z": {"default": 1.0}, "a": {}}},
    "extra": {"q": 1},
    "strict": False,
    "name": "f",
}
CALLS = [
    {"type": "function", "index": 0, "id": "1", "function": {"name": "f", "arguments": arguments}}
    for arguments in ('{"b": 1,  "a": 2.50}', "", "[1]", "{bad")
]
CASES = [
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION, "x": 1}]},
    {"messages": [USER], "chat_template_kwargs": {"x": 1, "enable_thinking": False, "y": 2}},
    {"messages": [USER], "chat_template_kwargs": {"x": None}, "reasoning_effort": "low"},
    {"messages": [USER], "documents": [{"title": "t", "text": "d"}], "reasoning_effort": "none"},
    {"messages": [{"role": "user", "content": TEXTS, "name": "bob", "extra": 1}]},
    {"messages": [{"role": "user", "content": [{**TEXTS[1], "cache_control": {"a": 1}}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": CALLS}, USER]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": []}, USER]},
    {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "r"}, USER]},
    {"messages": [{"role": "tool", "content": TEXTS, "tool_call_id": "9", "name": "n"}, USER]},
    {"messages": [{"role": "tool", "content": []}, USER]},
    {"messages": [{"role": "developer", "content": "d"}, USER, {"role": "system", "content": "s"}]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}, USER]},
    {"messages": [{"role": "weird", "content": "w"}, USER]},
]


@pytest.fixture(scope="module", params=[STRINGS, PARTS], ids=["strings", "parts"])
def renderer(request, long_run, vllm_home, tmp_path_factory):
    """vLLM's server without an engine, and the template that it has."""
    folder = tmp_path_factory.mktemp("renderer")
    template = folder / "template.jinja"
    template.write_text(request.param)
    port = free_port()
    # fmt: off
    command = [
        vllm_home / "VENV/bin/vllm", "launch", "render", vllm_home / "smol",
        "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--max-model-len", "4096", "--chat-template", template,
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    ]
    # fmt: on
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_healthy(url, process))
        yield url, template
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def comparer(renderer, vllm_home):
    url, template = renderer
    config = TokenizerConfig(str(vllm_home / "smol"), chat_template=str(template))
    origin = Origin(ReplicaConfig("vllm", url), strips_credentials=False)
    questions = Questions(origin, MAX_ANSWER_BYTES)
    tokenizer = load_tokenizer(config, "vllm")
    yield questions, tokenizer, TokenizeComparer(questions, tokenizer, datetime.now)
    await questions.close()


@pytest.mark.timeout(400)
async def test_whatever_a_template_prints_is_the_same(comparer):
    """By its `/tokenize`, and by what its chat endpoint would send to an engine."""
    questions, tokenizer, compare = comparer
    bodies = [probe.body for probe in probes(tokenizer.special_texts) if probe.is_chat]
    for body in [*bodies, *CASES]:
        assert await compare.compare("case", MODEL_NAME, body, is_chat=True) == Comparison(1), body
        asked = msgspec.json.encode({"model": MODEL_NAME, **body})
        answer = await questions.post("/v1/chat/completions/render", asked, 30.0)
        ours = tokenizer.token_ids(body, is_chat=True, now=datetime.now())
        assert msgspec.json.decode(answer.body)["token_ids"] == ours, body


async def _healthy(url, process):
    async with asyncio.timeout(300), aiohttp.ClientSession() as session:
        while True:
            assert process.poll() is None
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.5)
