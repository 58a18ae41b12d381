"""`headstart demo`: what it sends, what it measures, and how it shows it."""

import json

import aiohttp
import pytest
from rich.console import Console

from headstart.cli.demo.client import Answer, RefusedError, ask
from headstart.cli.demo.measure import ScenarioResult, run_scenario
from headstart.cli.demo.report import as_json, as_table
from headstart.cli.demo.run import _has_salts, _model
from headstart.cli.demo.scenarios import (
    Scenario,
    Step,
    load_scenarios,
    request_bodies,
    templates_folder,
)
from headstart.cli.serve import embedded_settings
from headstart.cli.service import running_service
from headstart.config.load import Flags, load_config
from headstart.errors import BadRequest
from headstart.templates.apply import apply_template
from headstart.templates.registry import TemplateSet
from headstart.wire.usage import Usage

KEYS = [
    "name",
    "requests",
    "input_tokens",
    "cached_tokens",
    "hit_ratio",
    "ttft_cold_s",
    "ttft_warm_s",
    "tpot_cold_s",
    "tpot_warm_s",
    "same_output",
]

TEMPLATE = """
id: rules
model: any
variables:
  question: {kind: dynamic}
segments:
  - {name: rules, role: system, kind: static, text: "%s"}
  - {name: history, kind: session, history: true}
  - {name: question, role: user, kind: dynamic, text: "{{ question }}"}
""" % ("Answer with one word and nothing else. " * 4)


def scenario(*, is_chat=False):
    steps = tuple(Step({"question": text}) for text in ("one?", "two?", "three?"))
    return Scenario("rules", "rules", steps, is_chat=is_chat)


def answer(text="yes", ttft_s=0.5, cached=0, tpot_s=0.05):
    return Answer(text, ttft_s, tpot_s, Usage(100, cached, None, 8))


class CachingEngine:
    """Answers like an engine that caches 64 of 100 tokens per salt, slow until it has them."""

    def __init__(self, *, is_broken=False):
        self.salts = []
        self.is_broken = is_broken

    async def ask(self, body):
        salt = body.get("cache_salt")
        is_hit = salt in self.salts
        self.salts.append(salt)
        text = "no" if is_hit and self.is_broken else "yes"
        return answer(text, ttft_s=0.1 if is_hit else 0.5, cached=64 if is_hit else 0)


@pytest.fixture
async def service(tiny_gguf, tmp_path):
    """The gateway in front of an embedded replica of the tiny model, with one template."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "rules.yaml").write_text(TEMPLATE)
    flags = Flags(
        model=str(tiny_gguf),
        port=0,
        admin="127.0.0.1:0",
        data_dir=str(tmp_path),
        templates=str(tmp_path / "templates"),
        request_log="off",
    )
    config = load_config(flags, {}, folder=tmp_path).config
    async with running_service(config, embedded_settings(config)) as running:
        yield running


def test_the_four_scenarios_are_there_and_each_has_a_prefix_to_share():
    """Long document, chat, agent and structured output, at least four requests each."""
    scenarios = load_scenarios()
    assert [each.name for each in scenarios] == [
        "document-qa",
        "support-chat",
        "agent-tools",
        "invoice-extraction",
    ]
    assert all(len(each.steps) >= 4 for each in scenarios)
    assert [each.name for each in scenarios if each.is_chat] == ["support-chat"]


def test_every_body_of_every_scenario_is_one_that_its_template_takes():
    """The shipped templates assemble all shipped requests, and the model is the one asked for."""
    templates = TemplateSet.load(templates_folder())
    for each in load_scenarios():
        answers = [answer()] * len(each.steps)
        for body in request_bodies(each, "some-model", answers):
            applied = apply_template(body, templates)
            assembled = json.loads(applied.body)
            assert assembled["model"] == "some-model"
            assert assembled["messages"][0]["role"] == "system"
            assert applied.template_label.startswith(each.template + "@")


def test_a_chat_carries_the_answers_so_far():
    """Turn n holds the n - 1 turns before it, answers included."""
    answers = []
    lengths = []
    for body in request_bodies(scenario(is_chat=True), "m", answers):
        lengths.append(len(body["messages"]))
        answers.append(answer(f"answer {len(answers)}"))
    assert lengths == [0, 2, 4]
    assert body["messages"][-1] == {"role": "assistant", "content": "answer 1"}


async def test_cold_requests_share_no_salt_and_warm_ones_share_one():
    """Off: a salt each. On: one salt, so the first request fills and the others hit."""
    engine = CachingEngine()
    result = await run_scenario(scenario(), "m", engine.ask, has_salts=True)
    assert len(set(engine.salts)) == 4
    assert len(set(engine.salts[:3])) == 3
    assert len(set(engine.salts[3:])) == 1
    assert result == ScenarioResult("rules", 3, 300, 128, 128 / 300, 0.5, 0.1, 0.05, 0.05, True)


async def test_a_different_answer_with_the_cache_on_is_reported():
    """An engine whose cache changes the output is not hidden."""
    engine = CachingEngine(is_broken=True)
    result = await run_scenario(scenario(), "m", engine.ask, has_salts=True)
    assert result.same_output is False


async def test_without_salts_the_first_request_is_the_cold_one():
    """One pass only, and nothing to compare outputs with."""
    engine = CachingEngine()
    result = await run_scenario(scenario(), "m", engine.ask, has_salts=False)
    assert engine.salts == [None, None, None]
    assert (result.ttft_cold_s, result.ttft_warm_s, result.same_output) == (0.5, 0.1, None)


async def test_unknown_figures_stay_unknown():
    """An engine that reports no cached tokens leaves them and the hit ratio empty, not zero."""

    async def silent(_body):
        return Answer("yes", 0.5, None, Usage(100, None, None, None))

    result = await run_scenario(scenario(), "m", silent, has_salts=True)
    assert (result.input_tokens, result.cached_tokens, result.hit_ratio) == (300, None, None)
    assert result.tpot_cold_s is None
    console = Console(width=160, record=True)
    console.print(as_table([result]))
    assert "–" in console.export_text()


def test_json_has_the_documented_keys():
    """The keys and their order are what programs rely on."""
    result = ScenarioResult("rules", 3, 300, 128, 0.43, 0.5, 0.1, 0.05, 0.05, True)
    (printed,) = json.loads(as_json([result]))["scenarios"]
    assert list(printed) == KEYS


async def test_through_gateway_and_engine_the_second_request_is_cached(service):
    """The real path: template, gateway, embedded engine; blocks are reused, output is the same."""
    url = f"http://{service.listen}"
    async with aiohttp.ClientSession() as session:
        model = service.replicas[0].models[0]

        async def send(body):
            return await ask(session, f"{url}/v1/chat/completions", body)

        assert await _has_salts(session, url, model)
        assert await _model(session, url, None) == model
        result = await run_scenario(scenario(is_chat=True), model, send, has_salts=True)
    assert result.same_output
    assert result.requests == 3
    assert 0 < result.cached_tokens < result.input_tokens
    assert result.ttft_cold_s > 0
    assert result.ttft_warm_s > 0


async def test_an_engines_refusal_names_its_status_and_message(service):
    """A request that the gateway or the engine refuses ends the demo with their words."""
    url = f"http://{service.listen}/v1/chat/completions"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RefusedError, match="404") as caught:
            await ask(session, url, {"model": "nobody", "messages": []})
    assert caught.value.engine_status == 404


async def test_a_model_must_be_named_where_several_are_served(service, monkeypatch):
    """Guessing one of several models would measure the wrong one."""
    async with aiohttp.ClientSession() as session:

        async def two(_response):
            return {"data": [{"id": "a"}, {"id": "b"}]}

        monkeypatch.setattr(aiohttp.ClientResponse, "json", two)
        with pytest.raises(BadRequest, match="a, b"):
            await _model(session, f"http://{service.listen}", None)
