"""`Discovery`: sources are watched side by side, and a fault in one stays its own."""

import asyncio
import contextlib

from heard import TEMPLATE, hearing

from headstart.clock import VirtualClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery import discovery
from headstart.engines.discovery.build import SourceEntry, build_source
from headstart.engines.discovery.discovery import Discovery
from headstart.engines.discovery.dns import DnsConfig, DnsSource
from headstart.engines.discovery.file import FileConfig, FileSource
from headstart.engines.discovery.kubernetes import KubernetesConfig, KubernetesSource
from headstart.engines.discovery.roster import Roster


class Scripted:
    """A source that says one thing after the other, when the test lets it."""

    grace_s = 0.0

    def __init__(self, label, *lines):
        self.label = label
        self._lines = list(lines)
        self.go = asyncio.Semaphore(0)

    async def watch(self, listener):
        while True:
            await self.go.acquire()
            line = self._lines.pop(0)
            if isinstance(line, Exception):
                raise line
            if isinstance(line, str):
                listener.failed(line)
            else:
                listener.found([ReplicaConfig(name, f"http://{name}:1") for name in line])


@contextlib.asynccontextmanager
async def discovering(*sources, clock=None):
    """Yield a roster, those who watch, and the lists that were applied."""
    applied: asyncio.Queue = asyncio.Queue()

    def apply(replicas, /, *, cut=frozenset()):
        applied.put_nowait(sorted(each.name for each in replicas))

    roster = Roster([], apply, clock or VirtualClock())
    one = Discovery(sources, roster)
    task = asyncio.ensure_future(one.run())
    try:
        yield roster, one, applied
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_sources_are_watched_side_by_side():
    """One that is silent holds up nobody."""
    silent, one = Scripted("silent"), Scripted("one", ["a"], ["a", "b"])
    async with discovering(silent, one) as (_roster, _watching, applied):
        one.go.release()
        assert await applied.get() == ["a"]
        one.go.release()
        assert await applied.get() == ["a", "b"]


async def test_a_start_waits_for_the_first_word_of_each_and_not_for_good():
    """A word can be that it failed."""
    one, other = Scripted("one", ["a"]), Scripted("other", "no answer")
    async with discovering(one, other) as (roster, watching, _applied):
        await watching.reported(0.01)
        assert roster.replicas == ()
        one.go.release()
        other.go.release()
        await watching.reported(60.0)
        assert [each.name for each in roster.replicas] == ["a"]


async def test_a_fault_in_a_source_is_said_and_it_is_watched_again(monkeypatch):
    """What it had listed stands, and the others go on."""
    monkeypatch.setattr(discovery, "_RESTART_S", 0.001)
    one, other = Scripted("one", ["a"], KeyError("x"), ["a", "c"]), Scripted("other", ["b"])
    async with discovering(one, other) as (roster, _watching, applied):
        one.go.release()
        assert await applied.get() == ["a"]
        one.go.release()
        other.go.release()
        assert await applied.get() == ["a", "b"]
        while not roster.sources()[0].trouble:
            await asyncio.sleep(0.001)
        assert roster.sources()[0].trouble == "a fault of headstart's own: KeyError"
        one.go.release()
        assert await applied.get() == ["a", "b", "c"]


async def test_time_passes_without_a_word_of_any_source(monkeypatch):
    """A grace ends by itself."""
    monkeypatch.setattr(discovery, "_SWEEP_S", 0.001)
    clock, one = VirtualClock(), Scripted("one", ["a"], [])
    async with discovering(one, clock=clock) as (roster, _watching, applied):
        one.go.release()
        assert await applied.get() == ["a"]
        one.go.release()
        while not roster.sources()[0].trouble:
            await asyncio.sleep(0.001)
        clock.advance(30.0)
        assert await applied.get() == []


async def test_each_entry_of_the_configuration_makes_its_source(tmp_path):
    """The template goes with it."""
    read = []

    def read_file(path, template):
        read.append((path, template))
        return []

    path = tmp_path / "engines.yaml"
    file = build_source(SourceEntry(FileConfig(path), TEMPLATE), read_file)
    assert isinstance(file, FileSource)
    async with hearing(file) as heard:
        assert await heard.names() == []
    assert read == [(path, TEMPLATE)]
    dns = build_source(SourceEntry(DnsConfig("vllm", 8000), TEMPLATE), read_file)
    assert isinstance(dns, DnsSource)
    kubernetes = build_source(SourceEntry(KubernetesConfig("vllm"), TEMPLATE), read_file)
    assert isinstance(kubernetes, KubernetesSource)
