"""Keys in, tenants out; and whose key goes where."""

import hashlib

import pytest

from headstart.accounting.tenant import Tenant
from loopback import ScriptedEngine, chat, get, post, running


def tenant(name: str, key: str, line: str = "") -> Tenant:
    return Tenant(name, hashlib.sha256(key.encode()).digest(), line)


TENANTS = [tenant("acme", "sk-acme", "support"), tenant("other", "sk-other")]


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer sk-acme", "authorization: bearer sk-acme", "X-API-Key: sk-acme"],
)
async def test_a_known_key_opens_and_names_the_tenant(header):
    """OpenAI's and Anthropic's way of sending it."""
    async with running(ScriptedEngine(), tenants=TENANTS) as up:
        assert (await up.ask(post(chat(), headers=[header]))).status == 200
    (record,) = up.records
    assert (record.tenant, record.business_line) == ("acme", "support")


@pytest.mark.parametrize(
    "headers",
    [[], ["Authorization: Bearer wrong"], ["Authorization: Basic sk-acme"], ["X-API-Key: "]],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
async def test_without_a_known_key_the_answer_is_401(headers, path):
    """In OpenAI's form, and nothing reaches an engine."""
    engine = ScriptedEngine()
    async with running(engine, tenants=TENANTS) as up:
        reply = await up.ask(post(chat(), path=path, headers=headers))
        models = await up.ask(get("/v1/models", headers=headers))
    for answer in (reply, models):
        assert answer.status == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not engine.requests
    assert [record.status for record in up.records] == [401, 401]
    assert {record.tenant for record in up.records} == {""}
    assert "wrong" not in reply.body.decode()


async def test_probes_need_no_key():
    """They say nothing about anybody."""
    async with running(ScriptedEngine(), tenants=TENANTS) as up:
        assert (await up.ask(get("/health"))).status == 200
        assert (await up.ask(get("/ready"))).status == 200
    assert up.records == []


@pytest.mark.parametrize("key", [None, "engine-key"])
async def test_a_tenants_key_never_goes_upstream(key):
    """The engine gets its own key, or none."""
    engine = ScriptedEngine()
    await engine.start()
    headers = ["Authorization: Bearer sk-acme", "X-API-Key: sk-acme", "api-key: sk-acme"]
    configs = [engine.config(api_key=key)]
    async with running(engine, configs=configs, tenants=TENANTS) as up:
        await up.ask(post(chat(), headers=headers))
    (request,) = engine.requests
    assert not any("sk-acme" in value for _, value in request.headers)
    assert request.header("authorization") == (f"Bearer {key}" if key else None)
    assert engine.checks[0].header("authorization") == (f"Bearer {key}" if key else None)


async def test_an_engines_key_replaces_the_clients_even_without_tenants():
    """An API provider must not be sent whatever the client carries."""
    engine = ScriptedEngine()
    await engine.start()
    async with running(engine, configs=[engine.config(api_key="engine-key")]) as up:
        await up.ask(post(chat(), headers=["Authorization: Bearer mine"]))
    assert engine.requests[0].header("authorization") == "Bearer engine-key"


async def test_anthropic_takes_its_key_in_its_own_header():
    """https://docs.anthropic.com/en/api/overview"""
    engine = ScriptedEngine()
    await engine.start()
    async with running(engine, configs=[engine.config(api_key="k", kind="anthropic")]) as up:
        await up.ask(post(chat()))
    assert engine.requests[0].header("x-api-key") == "k"
    assert engine.requests[0].header("authorization") is None


def test_a_tenant_does_not_print_its_hash():
    """Nor a replica its key."""
    engine = ScriptedEngine()
    assert "sk-" not in repr(TENANTS[0])
    assert TENANTS[0].key_sha256.hex() not in repr(TENANTS[0])
    assert repr(TENANTS[0].key_sha256) not in repr(TENANTS[0])
    assert "secret" not in repr(engine.config(api_key="secret"))
