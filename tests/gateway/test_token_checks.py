"""Checks of all replicas, as they come and go."""

import asyncio

import pytest

from headstart.clock import SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.embedded.server import EngineServer
from headstart.engines.embedded.settings import EngineSettings
from headstart.engines.origin import Origin
from headstart.engines.tokenizers.config import TokenisingConfig, TokenizerConfig
from headstart.gateway.token_checks import TokenChecks, TokenizerShelf
from headstart.gateway.tokenising import Tokenising
from headstart.prompt.token_keys import TokenPrompt
from loopback import eventually

CHAT = b'{"messages": [{"role": "user", "content": "the thing"}]}'


@pytest.fixture
async def engine(tiny_gguf):
    """A real engine with the tiny model."""
    server = EngineServer(EngineSettings(model_path=tiny_gguf, model_name="tiny"), SystemClock())
    await server.start()
    yield server
    hurry = asyncio.Event()
    hurry.set()
    await server.stop(hurry)


@pytest.fixture
async def parts():
    """Tokenising, checks, and what these told."""
    tokenising = Tokenising(TokenisingConfig(), SystemClock())
    told = []
    checks = TokenChecks(tokenising, SystemClock(), lambda *heard: told.append(heard))
    yield tokenising, checks, told
    await checks.close()
    await tokenising.close()


@pytest.fixture
def shelf():
    return TokenizerShelf(TokenisingConfig())


def origin(url):
    return Origin(ReplicaConfig("r0", url), strips_credentials=False)


async def test_a_replica_is_checked_from_start_to_removal(engine, parts, shelf, tiny_gguf):
    """Agreement is told with its slot; counts and samples reach its own check."""
    _, checks, told = parts
    tokenizer = shelf.get(TokenizerConfig(str(tiny_gguf)), "embedded")
    checks.add_replica(3, origin(engine.url), "embedded", "tiny", tokenizer, 60.0)
    await eventually(lambda: told)
    assert told == [(3, True, "")]
    assert checks.is_agreed(3)
    assert checks.wants_sample(3)
    checks.sample(3, "/v1/chat/completions", "tiny", CHAT)
    assert not checks.wants_sample(3)
    await eventually(lambda: checks.statistics()[3].num_samples)
    assert checks.is_agreed(3)
    checks.answered(3, TokenPrompt(5, {}), 6)
    assert told[1][:2] == (3, False)
    checks.restarted(3)
    await eventually(lambda: checks.is_agreed(3))
    checks.remove_replica(3)
    assert not checks.is_agreed(3)
    assert checks.statistics() == {}


async def test_an_adapter_is_tokenised_as_its_base(parts, shelf, tiny_gguf):
    """The list of models says which is which."""
    tokenising, checks, _ = parts
    tokenizer = shelf.get(TokenizerConfig(str(tiny_gguf)), "vllm")
    checks.add_replica(0, origin("http://127.0.0.1:9"), "vllm", "base", tokenizer, 0.0)
    checks.models_found(0, {"base": {"parent": None}, "tuned": {"parent": "base"}})
    checks.models_found(7, {"other": {}})
    for model in ("base", "tuned", "other"):
        tokenising.set_block_sizes(model, frozenset({16}))
    assert tokenising.needs_tokens("base")
    assert tokenising.needs_tokens("tuned")
    assert not tokenising.needs_tokens("other")


async def test_a_replica_that_is_not_checked_is_none_of_its_business(parts):
    """Engines without a tokenizer answer as well."""
    _, checks, told = parts
    checks.answered(0, TokenPrompt(5, {}), 6)
    checks.restarted(0)
    checks.sample(0, "/v1/chat/completions", "m", CHAT)
    checks.remove_replica(0)
    assert not checks.wants_sample(0)
    assert not checks.is_agreed(0)
    assert told == []


def test_a_tokenizer_is_loaded_once_for_all_replicas(shelf, tiny_gguf):
    """But once for each way of rendering."""
    config = TokenizerConfig(str(tiny_gguf))
    vllm = shelf.get(config, "vllm")
    assert shelf.get(TokenizerConfig(str(tiny_gguf), sample_s=1.0), "sglang") is vllm
    assert shelf.get(config, "embedded") is not vllm
