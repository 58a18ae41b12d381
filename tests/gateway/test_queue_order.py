"""The queue's order, priorities and objective, through the gateway."""

import hashlib

import pytest
from held import Held

from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.routing.config import RoutingConfig
from headstart.routing.queue import QueueConfig
from loopback import RawClient, ScriptedEngine, chat, eventually, post, running


def ask(text, salt=None, **fields):
    """Return a request; `fields` go into its header."""
    head, _, body = post(chat(text, **({"cache_salt": salt} if salt else {}))).partition(
        b"\r\n\r\n"
    )
    lines = "".join(f"\r\n{name.replace('_', '-')}: {value}" for name, value in fields.items())
    return head + lines.encode() + b"\r\n\r\n" + body


async def send(up, text, **fields):
    """Send, and wait until the gateway has the request."""
    client = await RawClient.connect(up.port)
    num_open = up.gateway.num_open_requests
    await client.send(ask(text, **fields))
    await eventually(lambda: up.gateway.num_open_requests == num_open + 1)
    return client


async def all_served(up, held, clients):
    held.open()
    for client in clients:
        assert (await client.read_reply()).status == 200
        client.close()


async def test_the_longest_match_goes_first():
    """Of those that wait, who shares the prefix that the replica holds."""
    held = Held()
    queue = QueueConfig(max_in_flight=1, order="lpm")
    async with running(ScriptedEngine(held), queue=queue, routing=RoutingConfig()) as up:
        shared = "A" * 4000
        clients = [await send(up, shared + " 1")]
        await eventually(lambda: held.num_held == 1)
        clients += [await send(up, "B" * 4000), await send(up, shared + " 2")]
        await all_served(up, held, clients)
    assert [text[0] for text in held.texts] == ["A", "A", "B"]


async def test_a_match_moves_nobody_with_another_salt():
    """The turns are those of arrival; who of a salt goes in its turns is its own affair."""
    held, shared = Held(), "A" * 4000
    queue = QueueConfig(max_in_flight=1, order="lpm")
    async with running(ScriptedEngine(held), queue=queue, routing=RoutingConfig()) as up:
        clients = [await send(up, shared + " 1", salt="x")]
        await eventually(lambda: held.num_held == 1)
        for text, salt in (("B" * 4000, "x"), (shared + " 3", "y"), (shared + " 2", "x")):
            clients.append(await send(up, text, salt=salt))
        await all_served(up, held, clients)
    assert [text[0] + text[-1] for text in held.texts] == ["A1", "A2", "A3", "BB"]


async def test_fair_shares():
    """A tenant that floods the queue holds up itself."""
    held = Held()
    names = {"f": "flood", "l": "light"}
    tenants = [Tenant(name, hashlib.sha256(key.encode()).digest()) for key, name in names.items()]
    queue = QueueConfig(max_in_flight=1, order="dlpm", quantum_tokens=1000)
    async with running(
        ScriptedEngine(held), queue=queue, tenants=tenants, routing=RoutingConfig()
    ) as up:
        clients = [
            await send(up, f"f{n} " + "x" * 4000, authorization="Bearer f") for n in range(7)
        ]
        await eventually(lambda: held.num_held == 1)
        clients.append(await send(up, "l " + "x" * 4000, authorization="Bearer l"))
        await all_served(up, held, clients)
    order = [text.split()[0] for text in held.texts]
    assert order.index("l") <= 2
    assert [name for name in order if name != "l"] == [f"f{n}" for n in range(7)]


async def test_an_index_that_fails_costs_nobody_its_turn(monkeypatch, caplog):
    """What cannot be looked up counts as not cached."""

    def fail(*_args):
        raise RuntimeError("broken")

    held = Held()
    queue = QueueConfig(max_in_flight=1, order="lpm", ttft_objective_s=60.0)
    async with running(ScriptedEngine(held), queue=queue, routing=RoutingConfig()) as up:
        clients = [await send(up, "first")]
        await eventually(lambda: held.num_held == 1)
        monkeypatch.setattr(type(up.gateway._knowledge.router), "best_match", fail)
        clients += [await send(up, text) for text in ("second", "third")]
        await all_served(up, held, clients)
    assert held.texts == ["first", "second", "third"]
    assert "counts as not cached" in caplog.text


async def test_priorities():
    """The least goes first, whoever came first."""
    held = Held()
    async with running(ScriptedEngine(held), queue=QueueConfig(max_in_flight=1)) as up:
        clients = [await send(up, "first")]
        await eventually(lambda: held.num_held == 1)
        clients += [
            await send(up, "late", x_headstart_priority=7),
            await send(up, "plain"),
            await send(up, "least", x_headstart_priority=3),
        ]
        await all_served(up, held, clients)
    assert held.texts == ["first", "plain", "least", "late"]


@pytest.mark.parametrize("value", ["soon", "1.5", "101", "-101", ""])
async def test_a_priority_that_is_none_is_refused(value):
    """The answer names it and says what would be one."""
    async with running(ScriptedEngine(Held()), queue=QueueConfig(max_in_flight=1)) as up:
        client = await RawClient.connect(up.port)
        await client.send(ask("x", x_headstart_priority=value))
        reply = await client.read_reply()
        assert reply.status == 400
        assert b"-100 to 100" in reply.body
        client.close()


async def test_a_tenant_cannot_push_in():
    """Less than its `least_priority` counts as that; one that may go first does."""
    held = Held()
    tenants = [
        Tenant("plain", hashlib.sha256(b"p").digest()),
        Tenant("first", hashlib.sha256(b"f").digest(), limits=TenantLimits(least_priority=-10)),
    ]
    queue = QueueConfig(max_in_flight=1)
    async with running(ScriptedEngine(held), queue=queue, tenants=tenants) as up:
        clients = [await send(up, "a", authorization="Bearer p")]
        await eventually(lambda: held.num_held == 1)
        clients += [
            await send(up, "b", authorization="Bearer p"),
            await send(up, "c", authorization="Bearer p", x_headstart_priority=-100),
            await send(up, "d", authorization="Bearer f", x_headstart_priority=-100),
        ]
        await all_served(up, held, clients)
    assert held.texts == ["a", "d", "b", "c"]


async def test_what_cannot_be_in_time_is_refused_at_once():
    """With 429, Retry-After and a code of its own; what can be goes on."""
    held = Held()
    queue = QueueConfig(max_in_flight=100, ttft_objective_s=0.5)
    async with running(ScriptedEngine(held), queue=queue, routing=RoutingConfig()) as up:
        client = await send(up, "short")
        late = await RawClient.connect(up.port)
        await late.send(ask("word " * 200_000))
        reply = await late.read_reply()
        assert reply.status == 429
        assert b"ttft_objective" in reply.body
        assert int(reply.headers["retry-after"]) >= 1
        late.close()
        await all_served(up, held, [client])
    assert held.texts == ["short"]
