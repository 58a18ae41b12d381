"""Our tokens against a real vLLM's, on probes and on real conversations."""

import gzip
import json
from datetime import datetime

import pytest
from vllm_replica import CHAT_TEMPLATE, MODEL_NAME

from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.engines.questions import Questions
from headstart.engines.tokenizers.comparison import MAX_ANSWER_BYTES, Comparison, TokenizeComparer
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.engines.tokenizers.probes import probes

pytestmark = pytest.mark.timeout(600)

USER = {"role": "user", "content": "What is  it?\n"}
CONTINUED = [USER, {"role": "assistant", "content": "It is "}]
TOOL = {"type": "function", "function": {"strict": True, "name": "f", "x": [1.0, 2], "a": "é"}}
PARTS = [{"type": "text", "text": text} for text in ("", "x", " y")]
CALLS = [
    {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}
    for arguments in ('{"b": 1,  "a": 2.50}', "", "{}")
]

CASES = [
    {"messages": [USER], "add_generation_prompt": False},
    {
        "messages": CONTINUED,
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    {"messages": [USER], "tools": [TOOL]},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": CALLS}]},
    {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER]},
    {"messages": [USER], "reasoning_effort": "low", "documents": [{"text": "d"}]},
    {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    {"messages": [USER], "add_special_tokens": True},
    {"messages": [{"role": "user", "content": PARTS}]},
    {"messages": [USER], "chat_template_kwargs": {"x": None, "documents": []}},
    {"messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": "r"}]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}, USER]},
    {"messages": [USER, {"role": "tool", "tool_call_id": "1", "content": PARTS}]},
]


@pytest.fixture(params=["folder", "gguf"])
def tokenizer(request, vllm_home):
    """Ours, from the files that vLLM reads, and from the file that they were made of."""
    path = vllm_home / "smol"
    if request.param == "gguf":
        path = request.getfixturevalue("real_model")
    return load_tokenizer(TokenizerConfig(str(path), chat_template=str(CHAT_TEMPLATE)), "vllm")


@pytest.fixture
async def comparer(tokenizer, replicas):
    questions = Questions(
        Origin(ReplicaConfig("vllm", replicas[0].url), strips_credentials=False), MAX_ANSWER_BYTES
    )
    yield TokenizeComparer(questions, tokenizer, datetime.now)
    await questions.close()


async def test_every_probe_agrees(comparer, tokenizer):
    """None is refused, and none differs."""
    num_probes = len(list(probes(tokenizer.special_texts)))
    assert await comparer.probe(MODEL_NAME) == Comparison(num_probes)


@pytest.mark.parametrize("body", CASES)
async def test_every_field_has_the_engines_effect(comparer, body):
    """Each of those that decide on the tokens."""
    assert await comparer.compare("case", MODEL_NAME, body, is_chat=True) == Comparison(1)


async def test_real_conversations_agree(comparer, test_data):
    """Sessions with tools, at several lengths."""
    folder = test_data / "data" / "sessions"
    tools = json.loads((folder / "airline_tools.json").read_text())
    with gzip.open(folder / "tau_airline.sessions.jsonl.gz", "rt") as lines:
        sessions = [json.loads(line)["messages"] for _, line in zip(range(5), lines, strict=False)]
    for messages in sessions:
        for end in range(2, len(messages), 3):
            body = {"messages": messages[:end], "tools": tools}
            found = await comparer.compare("session", MODEL_NAME, body, is_chat=True)
            assert found == Comparison(1)
