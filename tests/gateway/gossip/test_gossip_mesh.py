"""`Gossip`: processes on one host and on several, over real ZeroMQ sockets."""

import asyncio

import pytest
import zmq
from gossip_nodes import Node, free_endpoint, started

from gossip_sides import own, prompt_of, remote
from headstart.errors import ConfigError
from headstart.gateway.gossip.links import Links, peer_links, socket_folder, worker_links
from headstart.routing.gossip.config import GossipConfig
from headstart.routing.load import RemoteLoad
from headstart.wire.gossip import GossipBatch, Kind, LoadReport, encode_gossip
from loopback import eventually

NOTHING = RemoteLoad()
KEY, OTHER_KEY = "a shared secret of gateways", "the secret of somebody else"


@pytest.fixture
def folder():
    with socket_folder() as path:
        yield path


def workers(folder, num=2, **options):
    return [
        Node(f"h/{index}", worker_links(folder, index, num, has_peers=False), **options)
        for index in range(num)
    ]


def peers(*keys, **options):
    endpoints = [free_endpoint() for _ in keys]
    return [
        Node(
            f"h{index}/0",
            peer_links(GossipConfig(endpoints[index], tuple(endpoints), key)),
            **options,
        )
        for index, key in enumerate(keys)
    ]


async def all_hear(nodes, num=None):
    """Wait until each hears `num` others; without it all others."""
    num = len(nodes) - 1 if num is None else num
    await eventually(lambda: all(node.figures.num_peers == num for node in nodes))


async def test_workers_hear_load_and_prompts_of_each_other(folder):
    """From dispatch to answer."""
    a, b = workers(folder)
    prompt = prompt_of("hello")
    async with started(a, b):
        await all_hear((a, b))
        dispatch = a.requests.send(a.replicas[1], prompt, uncached=30, matched=16)
        await eventually(lambda: remote(b.replicas[1]).pending_tokens == 30)
        assert remote(b.replicas[0]) == NOTHING
        a.requests.first_token(dispatch)
        await eventually(lambda: remote(b.replicas[1]).num_pending == 0)
        assert remote(b.replicas[1]) == own(a.replicas[1])
        assert remote(b.replicas[1]).in_flight == 1
        a.requests.answer(dispatch, (70, 48, 3))
        await eventually(lambda: remote(b.replicas[1]) == NOTHING)
        await eventually(lambda: len(b.index.heard) == 3)
    assert b.index.heard == [
        ("dispatched", 1, prompt),
        ("computed", 1, prompt),
        ("answered", 1, prompt, 16, 70, 48, 3),
    ]
    assert a.index.heard == []


async def test_three_workers_sum_up_the_other_two(folder):
    """Each to each."""
    nodes = workers(folder, 3)
    async with started(*nodes):
        await all_hear(nodes)
        for number, node in enumerate(nodes):
            node.requests.send(node.replicas[0], uncached=10**number)
        for number, node in enumerate(nodes):
            others = 111 - 10**number
            await eventually(lambda n=node, o=others: remote(n.replicas[0]).pending_tokens == o)
            assert remote(node.replicas[0]).in_flight == 2


@pytest.mark.parametrize("key", [None, KEY])
async def test_gateways_hear_each_other_over_tcp(key):
    """In the clear on loopback, or encrypted; their own address among the peers does no harm."""
    a, b = peers(key, key)
    async with started(a, b):
        await all_hear((a, b))
        a.requests.send(a.replicas[0], prompt_of("x"), uncached=5)
        await eventually(lambda: remote(b.replicas[0]).pending_tokens == 5)
        await eventually(lambda: b.index.heard)
        assert remote(a.replicas[0]) == NOTHING
        assert a.index.heard == []
        assert a.figures.num_refused == b.figures.num_refused == 0


@pytest.mark.parametrize(("key", "other"), [(KEY, OTHER_KEY), (KEY, None), (None, KEY)])
async def test_another_key_is_refused_and_counted(key, other):
    """Nothing passes in either direction."""
    a, b = peers(key, other)
    c = Node("h2/0", Links((), a.links.binds, key))
    async with started(a, b, c):
        await eventually(lambda: c.figures.num_peers == 1)
        await eventually(lambda: a.figures.num_refused and b.figures.num_refused)
        a.requests.send(a.replicas[0], prompt_of("x"))
        await eventually(lambda: remote(c.replicas[0]).in_flight == 1)
        for node in (a, b):
            assert node.figures.num_peers == 0
        assert b.index.heard == []
        assert remote(b.replicas[0]) == NOTHING


async def test_a_peer_that_changes_its_key_to_the_right_one_is_heard(folder):
    """A refusal is not for good."""
    a, b = peers(KEY, None)
    async with started(a):
        async with started(b):
            await eventually(lambda: a.figures.num_refused and b.figures.num_refused)
        links = b.links
        again = Node("h1/0", Links(links.binds, links.connects, KEY))
        async with started(again):
            await all_hear((a, again))


async def test_what_eavesdroppers_see_is_neither_keys_nor_names(folder):
    """Who relays the bytes between two gateways learns nothing but when they speak."""
    a, b = peers(KEY, KEY)
    seen = bytearray()
    target = a.links.binds[0]
    host, port = target.removeprefix("tcp://").split(":")

    async def copy(reader, writer):
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def listen_in(reader, writer):
        their_reader, their_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, their_writer), copy(their_reader, writer))

    tap = await asyncio.start_server(listen_in, "127.0.0.1", 0)
    through = f"tcp://127.0.0.1:{tap.sockets[0].getsockname()[1]}"
    b = Node("h1/0", Links((), (through,), KEY))
    prompt = prompt_of("hello")
    async with started(a, b):
        await eventually(lambda: b.figures.num_peers == 1)
        a.requests.send(a.replicas[0], prompt)
        await eventually(lambda: b.index.heard)
    tap.close()
    await tap.wait_closed()
    assert len(seen) > 500
    for secret in (*prompt.keys, b"h0/0", KEY.encode()):
        assert secret not in seen


async def test_a_farewell_is_heard(folder):
    """Long before silence would tell."""
    a, b = workers(folder)
    async with started(b):
        async with started(a):
            await all_hear((a, b))
            a.requests.send(a.replicas[0])
            await eventually(lambda: remote(b.replicas[0]).in_flight == 1)
        await eventually(lambda: remote(b.replicas[0]) == NOTHING)
        assert b.figures.num_peers == 1  # it could come back; silence will tell


async def test_the_load_of_a_peer_that_vanishes_is_forgotten(folder):
    """Once it has been silent for `silence_s`."""
    a, b = workers(folder, silence_s=0.3)
    async with started(a, b):
        await eventually(lambda: b.figures.num_peers == 1)
        a.requests.send(a.replicas[0])
        await eventually(lambda: remote(b.replicas[0]).in_flight == 1)
        a.vanish()
        await eventually(lambda: b.figures.num_peers == 0)
        assert remote(b.replicas[0]) == NOTHING


async def test_a_worker_that_takes_anothers_place_is_heard(folder):
    """Under its name and at its address, with its load instead of the old one's."""
    a, b = workers(folder)
    async with started(b):
        async with started(a):
            await all_hear((a, b))
            a.requests.send(a.replicas[0], uncached=1)
            await eventually(lambda: remote(b.replicas[0]).pending_tokens == 1)
            a.vanish()
        again = workers(folder)[0]
        async with started(again):
            again.requests.send(again.replicas[0], uncached=2)
            await eventually(lambda: remote(b.replicas[0]).pending_tokens == 2)
            assert remote(b.replicas[0]).in_flight == 1
            assert b.figures.num_peers == 1


async def test_lost_messages_are_counted_and_made_good(folder):
    """By the next ones and the next snapshot that comes through."""
    a, b = workers(folder)
    async with started(a, b):
        await all_hear((a, b))
        a.drop_messages(0.5)
        opened = []
        for number in range(50):
            opened.append(a.requests.send(a.replicas[number % 2], prompt_of(str(number), 1)))
            if number % 3 == 2:
                a.requests.answer(opened.pop(0))
            sent = a.figures.num_sent
            await eventually(lambda s=sent: a.figures.num_sent > s)
        await eventually(
            lambda: all(remote(b.replicas[i]) == a.replicas[i].load.own() for i in range(2))
        )
        assert b.figures.num_lost > 0
        assert 0 < sum(what == "dispatched" for what, *_ in b.index.heard) < 50


async def test_an_idle_process_arms_no_timer_but_for_the_snapshot(folder):
    """And the first request arms one for all that follow it."""
    (a, _) = workers(folder)
    async with started(a):
        assert a.gossip._flushing is None
        a.requests.send(a.replicas[0])
        timer = a.gossip._flushing
        a.requests.send(a.replicas[1])
        assert a.gossip._flushing is timer
        before = a.figures.num_sent
        await eventually(lambda: a.gossip._flushing is None)
        assert a.figures.num_sent == before + 1


async def test_there_is_no_task(folder):
    """Timers and readers alone, so nothing is left over and nothing waits."""
    before = asyncio.all_tasks()
    (a, _) = workers(folder)
    async with started(a):
        assert asyncio.all_tasks() == before
    assert asyncio.all_tasks() == before


async def test_what_a_broken_peer_sends_is_counted_and_harms_nobody(folder, caplog):
    """Rubbish, several frames, another version; its prompts are never shown."""
    a, _ = workers(folder)
    links = worker_links(folder, 1, 2, has_peers=False)
    context = zmq.Context()
    with context, context.socket(zmq.PUB) as broken:
        broken.setsockopt(zmq.LINGER, 0)
        broken.bind(links.binds[0])
        good = GossipBatch("h/1", 1, 0, Kind.SNAPSHOT, [LoadReport(b"nobodys!", 1, 1, 1, 1)])
        async with started(a):
            while a.figures.num_unreadable < 4:
                broken.send(b"\x01secret")
                broken.send_multipart([encode_gossip(good), b"more"])
                broken.send(b"\x02" + encode_gossip(good)[1:])
                await asyncio.sleep(0.002)
            broken.send(encode_gossip(good))
            await eventually(lambda: a.figures.num_peers == 1)
            assert all(remote(replica) == NOTHING for replica in a.replicas)
    assert sum("not understood" in line.getMessage() for line in caplog.records) == 1
    assert "secret" not in caplog.text


async def test_a_replica_that_is_known_later_has_the_load_that_was_told_before(folder):
    """Found engines come at different times on different processes."""
    a, b = workers(folder)
    late = b.replicas[1]
    b.gossip.remove_replica(late)
    async with started(a, b):
        await all_hear((a, b))
        a.requests.send(a.replicas[0])
        a.requests.send(a.replicas[1], uncached=5)
        await eventually(lambda: remote(b.replicas[0]).in_flight == 1)
        assert remote(late) == NOTHING
        b.gossip.add_replica(late, "http://r1:8000")
        assert remote(late).pending_tokens == 5


async def test_an_address_that_cannot_be_bound_is_a_configuration_error():
    """It names the address and what to do."""
    a, b = peers(None, None)
    taken = Links(a.links.binds, ())
    async with started(a):
        c = Node("h3/0", taken)
        with pytest.raises(ConfigError, match="choose a free port"):
            c.gossip.start()
        await c.gossip.close()
    await b.gossip.close()


async def test_it_can_be_used_before_its_start_and_after_its_end(folder):
    """Nothing is told then, and nothing is lost that was to be told."""
    a, b = workers(folder)
    dispatch = a.requests.send(a.replicas[0], uncached=7)
    async with started(a, b):
        await eventually(lambda: remote(b.replicas[0]).pending_tokens == 7)
    await a.gossip.close()
    a.requests.answer(dispatch)
    assert a.gossip._flushing is None
