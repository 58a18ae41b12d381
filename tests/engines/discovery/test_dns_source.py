"""`DnsSource`: a replica for each address of a name."""

import asyncio
import socket

import pytest
from heard import TEMPLATE, hearing

from headstart.engines.discovery import dns
from headstart.engines.discovery.dns import DnsConfig, DnsSource, resolve_addresses

NOBODY = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
LATER = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def source(*answers, host="vllm.default.svc", ttl_s=0.001) -> DnsSource:
    """A source whose resolver gives these answers, one after the other, and then waits."""
    left = list(answers)

    async def resolve(asked):
        assert asked == host
        if not left:
            await asyncio.Event().wait()
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return DnsSource(DnsConfig(host, 8000, ttl_s), TEMPLATE, resolve)


async def test_each_address_is_a_replica_with_what_the_template_says():
    """Named after service, address and port, whatever the order of the answer."""
    async with hearing(source(["10.0.0.2", "10.0.0.1", "10.0.0.2"])) as heard:
        first, second = await heard.next()
    assert (first.name, first.url) == ("vllm-10.0.0.1-8000", "http://10.0.0.1:8000")
    assert second.name == "vllm-10.0.0.2-8000"
    assert (first.kind, first.models, first.api_key) == ("vllm", ("m",), "sk-secret")


async def test_it_is_asked_again_and_again():
    """The system's resolver does not say for how long an answer holds."""
    async with hearing(source(["10.0.0.1"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.2"])) as heard:
        assert await heard.names() == ["vllm-10.0.0.1-8000"]
        assert await heard.names() == ["vllm-10.0.0.1-8000", "vllm-10.0.0.2-8000"]
        assert await heard.names() == ["vllm-10.0.0.2-8000"]


async def test_an_engine_with_addresses_of_two_families_is_one_replica():
    """Counted twice it would get twice its load."""
    async with hearing(source(["fd00::1", "10.0.0.1"], ["fd00::2", "fd00::1"])) as heard:
        assert await heard.names() == ["vllm-10.0.0.1-8000"]
        first, _second = await heard.next()
    assert (first.name, first.url) == ("vllm-[fd00::1]-8000", "http://[fd00::1]:8000")


async def test_a_name_without_addresses_lists_none_and_a_failure_is_a_failure():
    """A headless service without pods has no records; a server that is restarted says nothing."""
    answers = (NOBODY, LATER, OSError("no network"), UnicodeError("label empty or too long"), [])
    async with hearing(source(*answers)) as heard:
        assert await heard.names() == []
        assert "Temporary failure" in await heard.failure()
        assert await heard.failure() == "it cannot be resolved: no network"
        assert "label empty" in await heard.failure()
        assert await heard.names() == []


async def test_a_server_that_does_not_answer_is_a_failure_and_asked_again(monkeypatch):
    """The system's resolver may take minutes."""
    monkeypatch.setattr(dns, "_ANSWER_S", 0.01)
    async with hearing(source()) as heard:
        assert await heard.failure() == "no answer within 0.01 s"
        assert await heard.failure() == "no answer within 0.01 s"


def test_an_address_is_kept_for_a_few_answers_that_leave_it_out():
    """Servers with many give some of them each time."""
    assert source(ttl_s=10.0).grace_s == 30.0
    assert source().label == "dns vllm.default.svc:8000"


async def test_the_systems_resolver_answers():
    """`localhost` is known everywhere."""
    assert "127.0.0.1" in await resolve_addresses("localhost")
    with pytest.raises(OSError):
        await resolve_addresses("no-such-name.invalid")
