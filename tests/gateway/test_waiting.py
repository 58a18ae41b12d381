"""Requests that wait for a replica: who goes when, and what ends a wait."""

import asyncio
import hashlib
from collections import Counter

import openai
import pytest
from held import Held

from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.clock import VirtualClock
from headstart.routing.config import RoutingConfig
from headstart.routing.queue import QueueConfig
from loopback import RawClient, ScriptedEngine, chat, eventually, get, post, running

ONE = QueueConfig(max_in_flight=1)


def ask_for(text: str, model: str = "m") -> bytes:
    return post({**chat(text), "model": model})


class Crowd:
    """Clients with one request each, sent in a known order."""

    def __init__(self, up) -> None:
        self.up = up
        self.clients: dict[str, RawClient] = {}

    @property
    def num_waiting(self) -> int:
        return self.up.gateway.status().num_waiting

    async def send(self, text: str, model: str = "m") -> RawClient:
        """Send, and wait until the gateway has the request."""
        client = self.clients[text] = await RawClient.connect(self.up.port)
        num_open = self.up.gateway.num_open_requests
        await client.send(ask_for(text, model))
        await eventually(lambda: self.up.gateway.num_open_requests == num_open + 1)
        return client

    async def status(self, text: str) -> int:
        reply = await self.clients[text].read_reply()
        assert reply.is_complete
        return reply.status

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


async def test_first_come_is_first_served():
    """And never more than `max_in_flight` at the engine."""
    held = Held()
    async with running(ScriptedEngine(held), queue=QueueConfig(max_in_flight=2)) as up:
        crowd = Crowd(up)
        for text in "abcdef":
            await crowd.send(text)
        await eventually(lambda: held.num_held == 2)
        assert crowd.num_waiting == 4
        assert up.gateway.status().num_waiting_bytes == 4 * len(ask_for("x").split(b"\r\n\r\n")[1])
        for num_sent in (3, 4, 5, 6):
            held.let_go()
            await eventually(lambda num_sent=num_sent: len(held.texts) == num_sent)
        held.open()
        assert [await crowd.status(text) for text in "abcdef"] == [200] * 6
        crowd.close()
        assert up.gateway.status().num_waiting_bytes == 0
    assert held.texts == list("abcdef")
    assert held.most == 2
    waits = [record.queue_s for record in up.records]
    assert waits[:2] == [0, 0]
    assert all(wait > 0 for wait in waits[2:])
    assert all(record.queue_s <= record.total_s for record in up.records)


async def test_a_full_model_does_not_hold_up_another():
    """Though its requests came first."""
    busy, free = Held(), Held()
    engines = [
        ScriptedEngine(busy, name="r0", models=["x"]),
        ScriptedEngine(free, name="r1", models=["y"]),
    ]
    async with running(*engines, queue=ONE) as up:
        crowd = Crowd(up)
        for text in ("x1", "x2", "x3"):
            await crowd.send(text, "x")
        for text in ("y1", "y2"):
            await crowd.send(text, "y")
        await eventually(lambda: free.texts == ["y1"])
        free.open()
        assert [await crowd.status(text) for text in ("y1", "y2")] == [200, 200]
        assert busy.texts == ["x1"]
        assert crowd.num_waiting == 2
        busy.open()
        assert [await crowd.status(text) for text in ("x1", "x2", "x3")] == [200] * 3
        crowd.close()
    assert busy.texts == ["x1", "x2", "x3"]


async def test_models_that_share_a_replica_share_the_order():
    """A line of its own is no advantage."""
    held = Held()
    async with running(ScriptedEngine(held, models=["x", "y"]), queue=ONE) as up:
        crowd = Crowd(up)
        texts = ["x1", "y1", "y2", "x2", "y3"]
        for text in texts:
            await crowd.send(text, text[0])
        await eventually(lambda: held.num_held == 1)
        held.open()
        assert [await crowd.status(text) for text in texts] == [200] * 5
        crowd.close()
    assert held.texts == texts


async def test_who_leaves_leaves_the_queue_at_once():
    """No engine ever sees the request; the record says that it waited."""
    held = Held()
    async with running(ScriptedEngine(held), queue=ONE) as up:
        crowd = Crowd(up)
        for text in "abc":
            await crowd.send(text)
        crowd.clients["b"].close()
        await eventually(lambda: crowd.num_waiting == 1)
        (record,) = up.records
        held.open()
        assert [await crowd.status(text) for text in "ac"] == [200, 200]
        crowd.close()
    assert held.texts == ["a", "c"]
    assert (record.status, record.error_code) == (499, "client_disconnected")
    assert (record.replica, record.policy) == ("", "")
    assert 0 < record.queue_s <= record.total_s


@pytest.mark.parametrize(
    "queue",
    [QueueConfig(1, max_waiting=1), QueueConfig(1, max_waiting_bytes=len(str(chat("x"))) + 20)],
    ids=["requests", "bytes"],
)
async def test_a_full_queue_refuses(queue):
    """The official client's RateLimitError, with the time that others have waited so far."""
    held, clock = Held(), VirtualClock()
    url = "http://127.0.0.1:{}/v1"
    async with running(ScriptedEngine(held), queue=queue, clock=clock) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        await crowd.send("b")
        clock.advance(11.5)
        async with openai.AsyncOpenAI(
            base_url=url.format(up.port), api_key="k", max_retries=0
        ) as client:
            with pytest.raises(openai.RateLimitError, match="1 requests wait") as caught:
                await client.chat.completions.create(model="m", messages=chat()["messages"])
        held.open()
        assert [await crowd.status(text) for text in "ab"] == [200, 200]
        crowd.close()
    assert caught.value.code == "queue_full"
    assert caught.value.response.headers["retry-after"] == "12"
    assert up.records[0].error_code == "queue_full"


async def test_without_places_a_full_replica_refuses_at_once():
    """`max_waiting: 0` is a limit on concurrency and no queue."""
    held = Held()
    async with running(ScriptedEngine(held), queue=QueueConfig(1, max_waiting=0)) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        reply = await up.ask(ask_for("b"))
        held.open()
        assert await crowd.status("a") == 200
        crowd.close()
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")


async def test_who_has_waited_too_long_is_refused():
    """With the wait to expect; who came later goes on waiting."""
    held, clock = Held(), VirtualClock()
    queue = QueueConfig(1, max_wait_s=10)
    async with running(ScriptedEngine(held), queue=queue, clock=clock) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        await crowd.send("b")
        clock.advance(6)
        await crowd.send("c")
        clock.advance(6)
        reply = await crowd.clients["b"].read_reply()
        assert crowd.num_waiting == 1
        held.open()
        assert [await crowd.status(text) for text in "ac"] == [200, 200]
        crowd.close()
    assert (reply.status, reply.headers["retry-after"]) == (429, "10")
    assert reply.json()["error"]["code"] == "queue_timeout"
    assert (up.records[0].error_code, up.records[0].queue_s) == ("queue_timeout", 12)
    assert held.texts == ["a", "c"]


async def test_many_clients_over_two_replicas():
    """Everybody is served, and neither engine sees more than it should."""
    both = [Held(), Held()]
    engines = [ScriptedEngine(held, name=f"r{i}") for i, held in enumerate(both)]
    queue = QueueConfig(max_in_flight=3)
    async with running(*engines, queue=queue) as up:
        clients = [asyncio.ensure_future(up.ask(ask_for(f"{i}"))) for i in range(80)]
        await eventually(lambda: up.gateway.status().num_waiting == 74)
        await eventually(lambda: [held.num_held for held in both] == [3, 3])
        for _ in range(20):
            await eventually(lambda: all(held.num_held == 3 for held in both))
            for held in both:
                held.let_go()
        for held in both:
            held.open()
        statuses = Counter(reply.status for reply in await asyncio.gather(*clients))
        assert [replica.in_flight for replica in up.gateway.replicas()] == [0, 0]
    assert statuses == {200: 80}
    assert [held.most for held in both] == [3, 3]


async def test_a_replica_that_dies_leaves_its_requests_to_the_others_in_order():
    """They came before those that wait, and go before them."""
    dying, other = Held(), Held()
    engines = [ScriptedEngine(dying, name="r0"), ScriptedEngine(other, name="r1")]
    routing = RoutingConfig(policy="round_robin")
    async with running(*engines, queue=ONE, routing=routing) as up:
        crowd = Crowd(up)
        for text in "abcd":
            await crowd.send(text)
        await eventually(lambda: dying.texts + other.texts in (["a", "b"], ["b", "a"]))
        failed, kept = dying.texts[0], other.texts[0]
        await engines[0].stop()
        await eventually(lambda: not up.gateway.replicas()[0].is_available)
        other.open()
        assert [await crowd.status(text) for text in "abcd"] == [200] * 4
        crowd.close()
    assert other.texts == [kept, failed, "c", "d"]
    assert up.records[0].retries + up.records[1].retries == 1


async def test_a_503_waits_for_another_replica():
    """The one that refused has room, and is not asked again."""

    async def refuse(_request, wire) -> None:
        refusals.append(1)
        await wire.answer(503, b"{}")

    refusals: list[int] = []
    held = Held()
    engines = [ScriptedEngine(held, name="r0"), ScriptedEngine(refuse, name="r1")]
    routing = RoutingConfig(policy="least_loaded")
    async with running(*engines, queue=ONE, routing=routing) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        if not held.texts and not refusals:
            await eventually(lambda: held.texts or refusals)
        await crowd.send("b")
        await eventually(lambda: crowd.num_waiting == 1)
        assert up.gateway.replicas()[1].in_flight == 0
        held.open()
        assert [await crowd.status(text) for text in "ab"] == [200, 200]
        crowd.close()
    assert sorted(held.texts) == ["a", "b"]
    assert len(refusals) == sum(record.retries for record in up.records)


async def test_without_any_replica_left_the_wait_is_over():
    """503 as for a request that comes then; the first in the queue may have found out."""
    held = Held()
    engine = ScriptedEngine(held)
    async with running(engine, queue=ONE) as up:
        crowd = Crowd(up)
        for text in "abcd":
            await crowd.send(text)
        await engine.stop()
        replies = [await crowd.clients[text].read_reply() for text in "cd"]
        assert await crowd.status("b") in (502, 503)
        crowd.close()
    for reply in replies:
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == "no_replica_available"
    assert held.texts == ["a"]


async def test_a_replica_that_returns_is_used_for_those_who_wait():
    """Without anybody's request to end first."""
    stuck, back = Held(), Held()
    engines = [ScriptedEngine(stuck, name="r0"), ScriptedEngine(back, name="r1")]
    await engines[1].start()
    await engines[1].stop()
    configs = [engines[0].config(), engines[1].config()]
    await engines[0].start()
    configs[0] = engines[0].config()
    async with running(engines[0], configs=configs, waits=False, queue=ONE) as up:
        await eventually(lambda: up.gateway.replicas()[0].is_available)
        crowd = Crowd(up)
        await crowd.send("a")
        await crowd.send("b")
        assert crowd.num_waiting == 1
        await engines[1].start()
        await eventually(lambda: back.texts == ["b"])
        back.open()
        assert await crowd.status("b") == 200
        stuck.open()
        assert await crowd.status("a") == 200
        crowd.close()
        await engines[1].stop()


async def test_a_model_that_disappears_is_not_found():
    """Also for those who wait for it."""
    held = Held()
    engine = ScriptedEngine(held, models=["m", "n"])
    async with running(engine, queue=ONE) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        await crowd.send("b", "n")
        fleet = up.gateway._fleet
        fleet.set_models(fleet.replicas[0], frozenset({"m"}))
        reply = await crowd.clients["b"].read_reply()
        held.open()
        assert await crowd.status("a") == 200
        crowd.close()
    assert reply.status == 404
    assert reply.json()["error"]["param"] == "model"


async def test_draining_serves_those_who_wait():
    """They were accepted; new ones are refused."""
    held = Held()
    async with running(ScriptedEngine(held), queue=ONE) as up:
        crowd = Crowd(up)
        for text in "abc":
            await crowd.send(text)
        await eventually(lambda: held.num_held == 1)
        draining = asyncio.ensure_future(up.gateway.drain())
        await eventually(lambda: up.gateway.is_draining)
        assert (await up.ask(ask_for("late"))).status == 503
        held.open()
        assert [await crowd.status(text) for text in "abc"] == [200] * 3
        await draining
        crowd.close()
    assert held.texts == list("abc")


async def test_closing_refuses_those_who_wait_and_sends_on_nobody():
    """The end of one request must not begin another."""
    held = Held()
    async with running(ScriptedEngine(held), queue=ONE, drain_s=0.01) as up:
        crowd = Crowd(up)
        for text in "abc":
            await crowd.send(text)
        await eventually(lambda: held.num_held == 1)
        await up.gateway.drain()
        await up.gateway.close()
        replies = [await crowd.clients[text].read_reply() for text in "bc"]
        crowd.close()
    assert [reply.status for reply in replies] == [503, 503]
    assert held.texts == ["a"]
    assert Counter(record.status for record in up.records) == {503: 3}


async def test_who_waits_counts_for_the_tenant_but_not_for_the_replica():
    """And is given back if it was never sent."""
    digest = hashlib.sha256(b"sk-acme").digest()
    tenant = Tenant("acme", digest, limits=TenantLimits(concurrent=2, requests_per_minute=9))
    key = ["Authorization: Bearer sk-acme"]
    held = Held()
    async with running(ScriptedEngine(held), queue=ONE, tenants=[tenant]) as up:
        clients = [await RawClient.connect(up.port) for _ in range(2)]
        for client in clients:
            await client.send(post(chat(), headers=key))
        await eventually(lambda: up.gateway.status().num_waiting == 1)
        assert up.gateway.replicas()[0].in_flight == 1
        refused = await up.ask(post(chat(), headers=key))
        clients[1].close()
        await eventually(lambda: up.gateway.status().num_waiting == 0)
        (use,) = up.gateway.status().limits
        held.open()
        assert (await clients[0].read_reply()).status == 200
        clients[0].close()
    assert refused.json()["error"]["code"] == "concurrent_limit"
    assert (use.open_requests, use.requests) == (1, 1)


async def test_requests_on_one_connection_wait_in_turn():
    """A pipelined one joins the queue when the one before it is answered."""
    held = Held()
    async with running(ScriptedEngine(held), queue=ONE) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        client = await crowd.send("b")
        await client.send(ask_for("c") + get("/health"))
        await crowd.send("d")
        held.open()
        assert [(await client.read_reply()).status for _ in range(3)] == [200] * 3
        assert [await crowd.status(text) for text in "ad"] == [200, 200]
        crowd.close()
    assert held.texts == ["a", "b", "d", "c"]


async def test_a_failed_request_that_nobody_can_take_is_refused():
    """Like a new one: it has been tried once, and there is no place to wait in."""

    async def refuse(_request, wire) -> None:
        await wire.answer(503, b"{}")

    held = Held()
    engines = [ScriptedEngine(held, name="r0"), ScriptedEngine(refuse, name="r1", models=["n"])]
    async with running(*engines, queue=QueueConfig(1, max_waiting=0)) as up:
        crowd = Crowd(up)
        await crowd.send("a")
        fleet = up.gateway._fleet
        fleet.set_models(fleet.replicas[1], frozenset({"m"}))
        reply = await up.ask(ask_for("b"))
        held.open()
        assert await crowd.status("a") == 200
        crowd.close()
    assert (reply.status, reply.json()["error"]["code"]) == (429, "queue_full")
    assert (up.records[0].retries, up.records[0].replica) == (1, "")
