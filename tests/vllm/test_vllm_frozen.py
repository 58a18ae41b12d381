"""What clients see when a real vLLM's engine is frozen, while its server answers `/health`."""

import asyncio
import signal

import pytest
from vllm_requests import PREFILL, ask, read, story, stream_from

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def frozen_one(replicas):
    """The replica to freeze; it goes on afterwards."""
    yield replicas[0]
    replicas[0].signal_workers(signal.SIGCONT)


async def test_an_engine_frozen_while_idle_costs_no_request(session, in_turn, replicas, frozen_one):
    """Who was sent to it is answered by the other; it is left out, and found again."""
    frozen_one.signal_workers(signal.SIGSTOP)
    answers = await asyncio.gather(
        *(
            ask(session, in_turn.url, story(4, f"Say {number}.", stream=number < 2))
            for number in range(4)
        )
    )
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.replica for answer in answers} == {replicas[1].name}
    await in_turn.until(frozen_one.name, "state", "stalled")
    frozen_one.signal_workers(signal.SIGCONT)
    await in_turn.until_available(2)
    records = await in_turn.records()
    assert sorted(record.retries for record in records) == [0, 0, 1, 1]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_engine_frozen_before_the_first_byte_is_replaced(
    session, in_turn, replicas, frozen_one, is_stream
):
    """It had begun to compute; the other one starts over."""
    body = story(4, f"{is_stream} {PREFILL}", stream=is_stream)
    requests = [asyncio.create_task(ask(session, in_turn.url, body)) for _ in range(2)]
    await in_turn.until(frozen_one.name, "in_flight", 1)
    frozen_one.signal_workers(signal.SIGSTOP)
    answers = await asyncio.gather(*requests)
    assert [answer.status for answer in answers] == [200, 200]
    assert {answer.replica for answer in answers} == {replicas[1].name}


async def test_a_stream_goes_on_when_its_engine_does(session, in_turn, frozen_one):
    """Meanwhile nobody else is sent there."""
    async with stream_from(session, in_turn, frozen_one, max_tokens=60) as response:
        stream = asyncio.create_task(
            read(response, on_first=lambda: frozen_one.signal_workers(signal.SIGSTOP))
        )
        await in_turn.until(frozen_one.name, "state", "stalled")
        assert (await ask(session, in_turn.url, story(2))).status == 200
        frozen_one.signal_workers(signal.SIGCONT)
        answer = await stream
    assert (answer.is_done, answer.errors) == (True, [])
    assert len(answer.events) > 50


async def test_a_stream_whose_engine_stays_frozen_ends_in_form(session, in_turn, frozen_one):
    """At the deadline for the next piece, with an error event and without `[DONE]`."""
    async with stream_from(session, in_turn, frozen_one, max_tokens=60) as response:
        answer = await read(response, on_first=lambda: frozen_one.signal_workers(signal.SIGSTOP))
    assert [error["code"] for error in answer.errors] == ["upstream_timeout"]
    assert not answer.is_done
