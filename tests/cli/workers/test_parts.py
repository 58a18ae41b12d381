"""The parts of several workers, one by one: pauses, messages, memory, sockets."""

import asyncio
import os
import socket

import pytest

from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.recorder import Recorder
from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.cli.workers.backoff import Backoff
from headstart.cli.workers.channel import open_channel
from headstart.cli.workers.listeners import bind_listeners, bound_port, close_listeners
from headstart.cli.workers.memory import SharedMemory, create_file
from headstart.cli.workers.messages import (
    Ask,
    Drain,
    FromWorker,
    Ready,
    SetReplicaDraining,
    ToWorker,
    WorkerStart,
)
from headstart.cli.workers.worker import Reporter
from headstart.config.load import Flags, load_config
from headstart.engines.base import ReplicaConfig
from headstart.errors import ConfigError
from headstart.gateway.state import GatewayStatus


def test_a_worker_that_worked_is_replaced_at_once():
    """However often: one a minute is no spin."""
    backoff = Backoff()
    assert [backoff.after(60.0) for _ in range(5)] == [0.0] * 5


def test_the_pause_doubles_up_to_half_a_minute():
    """And is forgotten once a worker has lived."""
    backoff = Backoff()
    pauses = [backoff.after(0.1) for _ in range(10)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert backoff.after(60.0) == 0.0
    assert backoff.after(0.1) == 0.5


@pytest.fixture
async def channels():
    """Both ends of a pair: the supervisor's and the worker's."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    up = await open_channel(ends[0], FromWorker)
    down = await open_channel(ends[1], ToWorker)
    yield up, down
    for channel in (up, down):
        await channel.close(within_s=1)


async def test_messages_arrive_as_they_were_sent_and_in_order(channels):
    """Large ones, too."""
    up, down = channels
    orders = [Ask(), SetReplicaDraining("r" * 300_000, True), Drain()]
    for order in orders:
        up.send(order)
    assert [await down.receive() for _ in orders] == orders
    down.send(Ready())
    assert await up.receive() == Ready()


async def test_an_end_that_is_gone_is_noticed(channels):
    """Whatever ended it; sending is then without effect."""
    up, down = channels
    up.send(Ask())
    await up.close(within_s=1)
    assert await down.receive() == Ask()
    assert await down.receive() is None
    down.send(Ready())
    up.send(Ask())


async def test_what_the_other_end_does_not_take_is_seen(channels):
    """So that reports to a supervisor that hangs do not pile up."""
    up, down = channels
    assert down.is_clear
    down.send_bytes(b"x" * 4_000_000)
    assert not down.is_clear
    assert len(await up.receive_bytes()) == 4_000_000
    while not down.is_clear:
        await asyncio.sleep(0)


class Channel:
    """A channel whose other end takes what it is sent, or not."""

    def __init__(self):
        self.is_clear = True
        self.sent = []

    def send(self, message):
        self.sent.append(message)


class StillGateway:
    def status(self):
        return GatewayStatus(False, True, 0, 0, ())


async def test_a_question_that_could_not_be_answered_is_answered_by_the_next_report():
    """The supervisor hung for a while: its question must not stay open for good."""
    channel = Channel()
    reporter = Reporter("worker-0", channel, StillGateway(), RequestMetrics(), Recorder())
    channel.is_clear = False
    reporter.send(is_answer=True)
    assert channel.sent == []
    channel.is_clear = True
    reporter.send()
    reporter.send()
    assert [report.is_answer for report in channel.sent] == [True, False]


async def test_the_last_report_is_sent_in_any_case():
    """It is one, so it cannot pile up, and nothing after it would say the same."""
    channel = Channel()
    channel.is_clear = False
    reporter = Reporter("worker-0", channel, StillGateway(), RequestMetrics(), Recorder())
    reporter.send(is_last=True)
    assert len(channel.sent) == 1


async def test_half_a_message_is_none():
    """The worker was killed while it reported."""
    ours, its = socket.socketpair()
    channel = await open_channel(ours, FromWorker)
    its.sendall(b"\0\0\0\x10half")
    its.close()
    assert await channel.receive() is None
    await channel.close(within_s=1)


def test_a_start_is_read_as_it_was_written(tmp_path):
    """Keys of engines included, which no message prints."""
    config = load_config(Flags(engines=("http://a:1",)), {}, folder=tmp_path).config
    replica = ReplicaConfig("r0", "http://a:1", api_key="sk-secret")
    start = WorkerStart(1, 2, config, (replica,), frozenset({"r0"}), (3, 4), 5, 6, tmp_path)
    assert WorkerStart.decode(start.encode()) == start
    assert "sk-secret" not in repr(start)


def test_a_supervisor_of_another_version_is_told_so(tmp_path):
    """headstart was upgraded under it, and the first worker to be replaced is of the new one."""
    config = load_config(Flags(engines=("http://a:1",)), {}, folder=tmp_path).config
    data = WorkerStart(0, 1, config, (), frozenset(), (), 0, 0, tmp_path).encode()
    with pytest.raises(ConfigError, match=r"supervisor is of 0\.0\.0; restart the service"):
        WorkerStart.decode(b"0.0.0\n" + data.partition(b"\n")[2])


def test_workers_see_each_others_figures():
    """Two mappings of one file stand for two processes."""
    tenants = [Tenant("a", limits=TenantLimits(concurrent=1))]
    with create_file(2, len(tenants)) as file:
        one, other = (SharedMemory(file.fileno(), 2, len(tenants)) for _ in range(2))
        one.clear(0)
        one.clear(1)
        boards = one.board(0), other.board(1)
        boards[0].publish(7)
        assert boards[1].fewest() == 7
        boards[1].publish(3)
        assert boards[0].fewest() == 3
        boards[1].leave()
        assert boards[0].fewest() == 7
        counts = one.tenant_counts(tenants, 0), other.tenant_counts(tenants, 1)
        assert counts[0].try_begin(0, 0, 100)
        assert not counts[1].try_begin(0, 0, 100)
        other.clear(0)
        assert counts[1].try_begin(0, 0, 100)


def test_a_name_with_two_addresses_gets_one_port():
    """`localhost` is two addresses on most machines."""
    listeners = bind_listeners("localhost", 0)
    try:
        assert {listener.getsockname()[1] for listener in listeners} == {bound_port(listeners)}
        assert not any(os.get_inheritable(listener.fileno()) for listener in listeners)
    finally:
        close_listeners(listeners)


def test_a_port_in_use_is_an_error_and_leaves_nothing_open():
    """Of the addresses that were bound before it."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        bind_listeners("127.0.0.1", taken.getsockname()[1])
