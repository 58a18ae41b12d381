"""Tenants' limits on the data path, as the official client meets them."""

import asyncio
import hashlib
from collections import Counter

import openai
import pytest
from held import Held

from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.clock import VirtualClock
from headstart.gateway.limits import LimitUse
from loopback import RawClient, ScriptedEngine, chat, eventually, get, post, running

ACME_KEY = ["Authorization: Bearer sk-acme"]
MESSAGES = chat()["messages"]


def tenants(**limits: int) -> list[Tenant]:
    """`acme` with these limits, and `other` without any."""
    digests = {name: hashlib.sha256(f"sk-{name}".encode()).digest() for name in ("acme", "other")}
    return [
        Tenant("acme", digests["acme"], limits=TenantLimits(**limits)),
        Tenant("other", digests["other"]),
    ]


def client_of(port: int, tenant: str = "acme") -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=f"sk-{tenant}", max_retries=0)


async def ask(client: openai.AsyncOpenAI, text: str = "hi") -> None:
    messages = [{"role": "user", "content": text}]
    await client.chat.completions.create(model="m", messages=messages)


async def refused(client: openai.AsyncOpenAI, text: str = "hi") -> openai.RateLimitError:
    with pytest.raises(openai.RateLimitError) as caught:
        await ask(client, text)
    assert caught.value.type == "rate_limit_error"
    return caught.value


def use(up) -> LimitUse:
    return up.gateway.status().limits[0]


async def test_one_more_than_the_concurrent_requests_is_refused():
    """Until one of them has ended; another tenant does not notice."""
    held = Held()
    async with (
        running(ScriptedEngine(held), tenants=tenants(concurrent=2)) as up,
        client_of(up.port) as acme,
        client_of(up.port, "other") as other,
    ):
        running_ones = [asyncio.ensure_future(ask(acme)) for _ in range(2)]
        await eventually(lambda: held.num_held == 2)
        error = await refused(acme)
        also = asyncio.ensure_future(ask(other))
        await eventually(lambda: held.num_held == 3)
        held.let_go()
        await asyncio.wait(running_ones, return_when=asyncio.FIRST_COMPLETED)
        held.open()
        await asyncio.gather(ask(acme), also, *running_ones)
        assert use(up) == LimitUse("acme", 0, 3, 300)
    assert error.code == "concurrent_limit"
    assert error.response.headers["retry-after"] == "1"
    codes = Counter((each.tenant, each.status, each.error_code) for each in up.records)
    assert codes == {
        ("acme", 429, "concurrent_limit"): 1,
        ("acme", 200, None): 3,
        ("other", 200, None): 1,
    }


async def test_requests_per_minute_pass_again_when_retry_after_has_passed():
    """Not a second before; OpenAI's fields say what is left."""
    clock = VirtualClock()
    clock.advance(1000.4)
    async with (
        running(ScriptedEngine(), tenants=tenants(requests_per_minute=2), clock=clock) as up,
        client_of(up.port) as acme,
    ):
        await ask(acme)
        clock.advance(20)
        await ask(acme)
        error = await refused(acme)
        wait_s = int(error.response.headers["retry-after"])
        assert wait_s == 41
        clock.advance(wait_s - 1)
        assert (await refused(acme)).response.headers["retry-after"] == "1"
        clock.advance(1)
        await ask(acme)
    assert error.code == "requests_per_minute_limit"
    assert error.response.headers["x-ratelimit-limit-requests"] == "2"
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"


async def test_input_tokens_are_what_the_engine_reports():
    """100 for each, however short the prompt looked."""
    clock = VirtualClock()
    async with (
        running(ScriptedEngine(), tenants=tenants(input_tokens_per_minute=250), clock=clock) as up,
        client_of(up.port) as acme,
    ):
        await ask(acme)
        await ask(acme)
        assert use(up).input_tokens == 200
        error = await refused(acme, "x" * 400)
        clock.advance(61)
        await ask(acme)
    assert error.code == "input_tokens_per_minute_limit"
    assert error.response.headers["retry-after"] == "61"
    assert error.response.headers["x-ratelimit-remaining-tokens"] == "50"


async def test_a_stream_settles_its_tokens_at_its_end():
    """Until then its estimate is booked."""
    held = Held()
    async with (
        running(ScriptedEngine(held), tenants=tenants(input_tokens_per_minute=10_000)) as up,
        client_of(up.port) as acme,
    ):
        task = asyncio.ensure_future(ask(acme, "x" * 4000))
        await eventually(lambda: held.num_held == 1)
        assert 1000 <= use(up).input_tokens < 1100
        held.open()
        await task
        assert use(up).input_tokens == 100


async def test_what_reaches_no_engine_is_no_request():
    """An unknown model, a body that cannot be read, the list of models, a refusal."""
    async with running(ScriptedEngine(), tenants=tenants(requests_per_minute=1)) as up:
        for raw in (
            post({**chat(), "model": "nope"}, headers=ACME_KEY),
            post(b"{", headers=ACME_KEY),
            get("/v1/models", headers=ACME_KEY),
        ):
            await up.ask(raw)
        assert use(up) == LimitUse("acme", 0, 0, 0)
        assert (await up.ask(post(chat(), headers=ACME_KEY))).status == 200
        for _ in range(3):
            assert (await up.ask(post(chat(), headers=ACME_KEY))).status == 429
        assert use(up) == LimitUse("acme", 0, 1, 100)


@pytest.mark.parametrize(
    ("path", "tokens"), [("/v1/embeddings", 0), ("/tokenize", 0), ("/v1/responses", 100)]
)
async def test_every_forwarded_request_counts_but_only_prompts_to_answer_have_tokens(path, tokens):
    """The engine reports 100 for all of them."""
    async with running(
        ScriptedEngine(), tenants=tenants(requests_per_minute=1, input_tokens_per_minute=9999)
    ) as up:
        assert (await up.ask(post(chat(), path=path, headers=ACME_KEY))).status == 200
        assert use(up) == LimitUse("acme", 0, 1, tokens)
        assert (await up.ask(post(chat(), path=path, headers=ACME_KEY))).status == 429


async def test_a_retry_is_the_same_request():
    """The client sent one."""

    async def answer(_request, wire) -> None:
        await wire.answer(503, b"{}")

    engines = [ScriptedEngine(answer, name=name) for name in ("r0", "r1")]
    async with running(*engines, tenants=tenants(requests_per_minute=5)) as up:
        assert (await up.ask(post(chat(), headers=ACME_KEY))).status == 503
        assert up.records[0].retries == 1
        assert use(up).requests == 1


async def test_a_client_that_leaves_is_no_longer_open():
    """Its request was one all the same: an engine has worked on it."""
    held = Held()
    async with running(ScriptedEngine(held), tenants=tenants(concurrent=1)) as up:
        client = await RawClient.connect(up.port)
        await client.send(post(chat(), headers=ACME_KEY))
        await eventually(lambda: held.num_held == 1)
        client.close()
        await eventually(lambda: use(up).open_requests == 0)
        held.open()
        assert (await up.ask(post(chat(), headers=ACME_KEY))).status == 200
        assert use(up).requests == 2


async def test_many_clients_at_once_never_exceed_the_limit():
    """Each of a hundred is answered or refused, and nothing stays counted."""
    held = Held()
    async with running(ScriptedEngine(held), tenants=tenants(concurrent=7)) as up:

        async def one() -> int:
            return (await up.ask(post(chat(), headers=ACME_KEY))).status

        clients = [asyncio.ensure_future(one()) for _ in range(100)]
        await eventually(lambda: sum(client.done() for client in clients) == 93)
        await eventually(lambda: held.num_held == 7)
        held.open()
        statuses = Counter(await asyncio.gather(*clients))
        assert use(up).open_requests == 0
    assert statuses == {200: 7, 429: 93}
    assert held.most == 7
