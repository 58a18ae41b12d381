"""What two real vLLM replicas reuse, seen through the gateway."""

import json
import shutil
from itertools import takewhile

import aiohttp
import pytest
from gateway_process import GatewayProcess
from typer.testing import CliRunner
from vllm_replica import BLOCK_SIZE, CHAT_TEMPLATE
from vllm_requests import CHAT, SENTENCE, ask, chat_body
from wiretap import wiretap

from headstart.cli.main import app

pytestmark = pytest.mark.timeout(600)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_order",
            "description": "Look up an order by its number. " * 12,
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
        },
    }
]

TEMPLATE = """\
id: shop
model: smol
variables:
  question: {kind: dynamic}
segments:
  - {name: policy, role: system, kind: static, text_file: policy.md}
  - {name: question, role: user, kind: dynamic, text: "{{ question }}"}
"""
TOOLS_SEGMENT = "  - {name: tools, kind: static, tools_file: tools.json}\n"


async def test_a_shared_prefix_is_cached_and_its_first_token_comes_sooner(session, gateway):
    """The second request meets the first one's replica, reuses its prefix and waits less."""
    system = "A rule of this run. " + SENTENCE * 60
    cold, warm = [
        await ask(
            session,
            gateway.url,
            chat_body(question, system=system, stream=True, stream_options={"include_usage": True}),
        )
        for question in ("Hello?", "Goodbye?")
    ]
    assert cold.cached_tokens == 0
    assert warm.cached_tokens > 0.9 * warm.usage["prompt_tokens"]
    assert warm.first_s < cold.first_s / 2
    assert warm.replica == cold.replica


async def test_records_hold_what_vllm_reported(session, gateway):
    """Tokens, cached tokens, TTFT and TPOT of a stream that did not ask for usage."""
    body = chat_body("Who are you?", system="Recorded. " + SENTENCE * 20, stream=True)
    for _ in range(2):
        answer = await ask(session, gateway.url, body)
        assert b'"usage"' not in answer.body
        assert answer.is_done
    first, second = await gateway.records()
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 0.8 * second.usage.input_tokens
    assert second.usage.output_tokens == 8
    assert first.replica == second.replica
    assert second.ttft_s < first.ttft_s
    assert second.tpot_s > 0
    assert second.body_changes == ("stream_options",)


async def test_salts_isolate(session, gateway):
    """A, A, B: nothing, a hit, nothing."""
    system = "Salted. " + SENTENCE * 15
    answers = [
        await ask(session, gateway.url, chat_body("Hi", system=system, cache_salt=salt))
        for salt in ("a", "a", "b")
    ]
    assert [answer.cached_tokens > 0 for answer in answers] == [False, True, False]


async def test_tools_reach_the_model_and_are_cached(session, gateway):
    """Tool schemas are part of the prefix."""
    system = "Tools. " + SENTENCE * 8
    first, second = [
        await ask(session, gateway.url, chat_body(question, system=system, tools=TOOLS))
        for question in ("Where is 1?", "And 2?")
    ]
    plain = await ask(session, gateway.url, chat_body("And 2?", system=system))
    assert second.usage["prompt_tokens"] > plain.usage["prompt_tokens"] + 50
    assert first.cached_tokens == 0
    assert second.cached_tokens > 0.6 * second.usage["prompt_tokens"]


def write_templates(folder, *, has_tools):
    """Make a folder with one template: a policy and perhaps a tool, then the question."""
    folder.mkdir()
    before, question = TEMPLATE.rsplit("  - ", 1)
    tools = TOOLS_SEGMENT if has_tools else ""
    (folder / "shop.yaml").write_text(f"{before}{tools}  - {question}")
    (folder / "policy.md").write_text(f"Templates, {has_tools}. {SENTENCE * 15}")
    (folder / "tools.json").write_text(json.dumps(TOOLS))
    return folder


@pytest.fixture
def tokenizer(vllm_home, tmp_path):
    """The model's tokenizer with the chat template that the replicas use."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(vllm_home / "smol" / name, folder)
    shutil.copy(CHAT_TEMPLATE, folder / "chat_template.jinja")
    return folder


@pytest.mark.parametrize("has_tools", [False, True])
async def test_a_templates_static_part_is_cached_whatever_the_variables(
    session, replicas, tmp_path, tokenizer, has_tools
):
    """vLLM reuses all blocks of the tokens that `template show` counts."""
    templates = write_templates(tmp_path / "templates", has_tools=has_tools)
    # A tokenizer joins the line break before the question with those that it begins with.
    questions = ("What does a new chain cost?", "\n\nIs Sunday a good day?")
    async with (
        wiretap(replicas[0].url) as tap,
        GatewayProcess.serving([tap.url], tmp_path, "--templates", str(templates)) as gateway,
    ):
        answers = [await ask(session, gateway.url, _templated(question)) for question in questions]
        prompts = [await _token_ids(session, replicas[0].url, taken) for taken in tap.taken(CHAT)]
    command = ["template", "show", "shop", "--json", "--templates", str(templates)]
    shown = CliRunner().invoke(app, [*command, "--tokenizer", str(tokenizer)])
    static_tokens = json.loads(shown.stdout)["static_tokens"]
    num_common = _num_common(*prompts)
    # vLLM writes the keys of a tool in an order of its own.
    assert abs(num_common - static_tokens) <= (3 if has_tools else 0)
    assert [len(prompt) for prompt in prompts] == [a.usage["prompt_tokens"] for a in answers]
    assert [a.cached_tokens for a in answers] == [0, num_common // BLOCK_SIZE * BLOCK_SIZE]


def _num_common(one: list[int], other: list[int]) -> int:
    """Return how many leading tokens two prompts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _templated(question: str) -> dict:
    return {
        "prompt": {"id": "shop", "variables": {"question": question}},
        "messages": [],
        "max_tokens": 4,
    }


async def _token_ids(session: aiohttp.ClientSession, url: str, body: bytes) -> list[int]:
    """Return a chat's prompt as vLLM tokenises it."""
    chat = json.loads(body)
    question = {name: chat[name] for name in ("model", "messages", "tools") if name in chat}
    async with session.post(f"{url}/tokenize", json=question) as response:
        return (await response.json())["tokens"]
