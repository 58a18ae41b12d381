"""What is known of caches fails, and requests do not."""

import logging

import pytest

from loopback import ScriptedEngine, chat, pair, plain, post, running

PROMPT = chat("x" * 3000)


async def test_a_request_is_answered_when_the_index_fails(caplog):
    """It goes where there is least to do, and its record says why."""
    async with running(*pair(plain)) as up:
        view = up.gateway._knowledge.view

        def fail(*_args):
            raise ZeroDivisionError

        view.match = fail
        reply = await up.ask(post(PROMPT))
        assert all(each.in_flight == 0 for each in up.gateway.replicas())
    assert reply.status == 200
    (record,) = up.records
    assert (record.policy, record.error_code) == ("least_loaded", None)
    assert "could not be asked" in record.reason
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("step", ["answered", "failed"])
async def test_a_failure_to_learn_is_nobodys_request(caplog, step):
    """The answer is complete, the replica is free, and the record is there."""
    caplog.set_level(logging.ERROR)

    async def refuse(_request, wire):
        await wire.answer(400)

    engine = ScriptedEngine(plain if step == "answered" else refuse)
    async with running(engine) as up:

        def fail(*_args):
            raise ZeroDivisionError

        setattr(up.gateway._knowledge.view, step, fail)
        for _ in range(2):
            assert (await up.ask(post(PROMPT))).status in (200, 400)
        assert up.gateway.replicas()[0].in_flight == 0
    assert len(up.records) == 2
    assert "ZeroDivisionError" in caplog.text


async def test_a_refused_prompt_leaves_routing_as_it_was():
    """A huge prompt that the engine refuses makes no replica dear, and no other prompt cheap."""

    async def answer(request, wire):
        await wire.answer(400 if len(request.body) > 100_000 else 200)

    engines = [ScriptedEngine(answer, name=f"r{index}") for index in range(2)]
    async with running(*engines) as up:
        await up.ask(post(PROMPT))
        await up.ask(post(chat("word " * 200_000)))
        loads = [each.load for each in up.gateway._fleet.replicas]
        assert sum(load.assigned_tokens for load in loads) < 2000
        assert sum(load.assigned_input_tokens for load in loads) < 2000
        assert all(load.in_flight == 0 for load in loads)
