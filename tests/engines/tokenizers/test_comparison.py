"""Our tokens against an engine's `/tokenize`: the embedded engine's, and answers of all kinds."""

import asyncio
import json
from datetime import datetime

import pytest

from headstart.clock import SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.embedded.server import EngineServer
from headstart.engines.embedded.settings import EngineSettings
from headstart.engines.origin import Origin
from headstart.engines.questions import Questions
from headstart.engines.tokenizers.comparison import (
    Comparison,
    TokenizeComparer,
    tokenize_body,
)
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.engines.tokenizers.probes import probes
from headstart.errors import UpstreamError
from loopback import ScriptedEngine

CHAT = {"messages": [{"role": "user", "content": "the thing"}]}


def now():
    return datetime(2026, 11, 30, 12)


@pytest.fixture
async def embedded(tiny_gguf):
    """A real engine with the tiny model."""
    settings = EngineSettings(model_path=tiny_gguf, model_name="tiny")
    server = EngineServer(settings, SystemClock())
    await server.start()
    yield server
    hurry = asyncio.Event()
    hurry.set()
    await server.stop(hurry)


@pytest.fixture
async def questions():
    """Questions to a URL, closed in the end."""
    asked = []

    def ask(url):
        asked.append(Questions(Origin(ReplicaConfig("r0", url), strips_credentials=False)))
        return asked[-1]

    yield ask
    for each in asked:
        await each.close()


@pytest.fixture
def tokenizer(tiny_gguf):
    return load_tokenizer(TokenizerConfig(str(tiny_gguf)), "embedded")


async def test_all_probes_agree_with_the_embedded_engine(embedded, questions, tokenizer):
    """Tools, parts, special tokens in text, and plain text; none is refused."""
    comparer = TokenizeComparer(questions(embedded.url), tokenizer, now, is_embedded=True)
    num_probes = len(list(probes(tokenizer.special_texts)))
    assert await comparer.probe("tiny") == Comparison(num_probes)


async def test_an_answer_format_is_compared_with_the_embedded_engine(
    embedded, questions, tokenizer
):
    """Its prompt has the schema."""
    comparer = TokenizeComparer(questions(embedded.url), tokenizer, now, is_embedded=True)
    body = {**CHAT, "response_format": {"type": "json_object"}}
    assert await comparer.compare("sample", "tiny", body, is_chat=True) == Comparison(1)


async def test_another_way_of_rendering_is_found(embedded, questions, tiny_gguf):
    """Not by plain conversations, but by tools."""
    other = load_tokenizer(TokenizerConfig(str(tiny_gguf)), "vllm")
    comparer = TokenizeComparer(questions(embedded.url), other, now)
    found = await comparer.probe("tiny")
    assert found.num_compared > 1
    assert "probe tools" in found.difference
    assert "get_weather" not in found.difference


async def test_what_the_engine_refuses_is_no_evidence(embedded, questions, tokenizer):
    """As an unknown model's prompt."""
    comparer = TokenizeComparer(questions(embedded.url), tokenizer, now)
    assert await comparer.compare("sample", "other", CHAT, is_chat=True) == Comparison(0)


async def test_what_cannot_be_known_is_not_asked(questions, tokenizer):
    """There is no engine here, and no question to it."""
    comparer = TokenizeComparer(questions("http://127.0.0.1:9"), tokenizer, now)
    assert await comparer.compare("sample", "m", {"messages": []}, is_chat=True) == Comparison(0)
    assert await comparer.compare("sample", "m", {"prompt": [1]}, is_chat=False) == Comparison(0)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (404, b"", Comparison(0)),
        (503, b"", None),
        (200, b"not JSON", None),
        (200, b'{"count": 3}', None),
        (200, b'{"tokens": ["a"]}', None),
    ],
)
async def test_answers_without_tokens(questions, tokenizer, status, body, outcome):
    """No `/tokenize` is no evidence; a broken answer is trouble, to be asked again."""

    async def answer(_request, wire):
        await wire.answer(status, body)

    engine = ScriptedEngine(answer)
    await engine.start()
    comparer = TokenizeComparer(questions(f"http://127.0.0.1:{engine.port}"), tokenizer, now)
    if outcome is None:
        with pytest.raises(UpstreamError):
            await comparer.compare("sample", "m", CHAT, is_chat=True)
    else:
        assert await comparer.compare("sample", "m", CHAT, is_chat=True) == outcome
    (request,) = engine.requests
    assert request.target == "/tokenize"
    assert request.header("content-type") == "application/json"
    assert json.loads(request.body) == {"model": "m", **CHAT}
    await engine.stop()


async def test_an_engine_that_is_gone_is_trouble(questions, tokenizer):
    """Not a difference."""
    comparer = TokenizeComparer(questions("http://127.0.0.1:9"), tokenizer, now)
    with pytest.raises(UpstreamError):
        await comparer.probe("m")


async def test_a_template_that_asks_for_the_time_is_not_judged_across_a_minute(
    questions, tiny_gguf, tmp_path
):
    """The two may have read different times."""
    file = tmp_path / "clock.jinja"
    file.write_text("{{ strftime_now('%H:%M') }}")
    asking = load_tokenizer(TokenizerConfig(str(tiny_gguf), chat_template=str(file)), "vllm")
    minutes = iter([1, 2, 3, 3])

    def passing():
        return datetime(2026, 11, 30, 12, next(minutes))

    async def answer(_request, wire):
        await wire.answer(200, b'{"tokens": [1]}')

    engine = ScriptedEngine(answer)
    await engine.start()
    comparer = TokenizeComparer(questions(f"http://127.0.0.1:{engine.port}"), asking, passing)
    assert await comparer.compare("sample", "m", CHAT, is_chat=True) == Comparison(0)
    found = await comparer.compare("sample", "m", CHAT, is_chat=True)
    assert found.difference is not None
    await engine.stop()


def test_a_question_has_what_decides_on_the_tokens_and_nothing_else():
    """What `/tokenize` has no field for goes in as the template's variable."""
    body = {
        **CHAT,
        "tools": [{"x": 1}],
        "stream": True,
        "max_tokens": 5,
        "continue_final_message": None,
        "documents": [{"text": "d"}],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"x": 1},
        "response_format": {"type": "text"},
    }
    question = tokenize_body("m", body, is_chat=True)
    variables = {
        "x": 1,
        "enable_thinking": True,
        "documents": [{"text": "d"}],
        "reasoning_effort": "low",
    }
    assert question == {
        "model": "m",
        **CHAT,
        "tools": [{"x": 1}],
        "chat_template_kwargs": variables,
    }
    assert "response_format" in tokenize_body("m", body, is_chat=True, has_format=True)


def test_a_completions_question_is_its_text():
    """Ids need no question."""
    assert tokenize_body("m", {"prompt": "x", "n": 2}, is_chat=False) == {
        "model": "m",
        "prompt": "x",
        "add_special_tokens": True,
    }
    assert tokenize_body("m", {"prompt": [1]}, is_chat=False) is None


def test_reasoning_goes_by_the_name_that_tokenize_knows():
    """vLLM's chat endpoint takes both."""
    told = {"role": "assistant", "content": "x", "reasoning_content": "r"}
    asked = tokenize_body("m", {"messages": [told, {**told, "reasoning": "s"}]}, is_chat=True)
    assert [message["reasoning"] for message in asked["messages"]] == ["r", "s"]
    assert "reasoning_content" not in asked["messages"][0]
