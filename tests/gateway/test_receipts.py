"""Receipts: why a request went where it did, in its answer, its record and on the admin port."""

import json

import pytest

from headstart.accounting.store import RequestStore, read_request
from headstart.routing.config import RoutingConfig
from headstart.routing.receipt import compact_receipt, expand_receipt
from loopback import ScriptedEngine, chat, pair, plain, post, running

PROMPT = chat("x" * 3000)


async def test_a_client_that_asks_gets_a_receipt_of_its_request():
    """One header line of JSON; another client gets none."""
    async with running(*pair(plain)) as up:
        asked = await up.ask(post(PROMPT, headers=["x-headstart-receipt: 1"]))
        silent = await up.ask(post(PROMPT))
    receipt = expand_receipt(asked.headers["x-headstart-receipt"])
    assert receipt["policy"] == "expected_ttft"
    assert receipt["replica"] == asked.headers["x-headstart-replica"]
    assert receipt["num_candidates"] == 2
    assert "x-headstart-receipt" not in silent.headers


async def test_the_engine_is_not_asked_for_a_receipt():
    """It is the gateway's own business."""
    engine = ScriptedEngine()
    async with running(engine) as up:
        await up.ask(post(PROMPT, headers=["x-headstart-receipt: 1"]))
    (received,) = engine.requests
    assert "x-headstart-receipt" not in dict(received.headers)


async def test_the_record_has_the_outcome_too(tmp_path):
    """What was predicted stands beside what the engine reported."""
    async with running(*pair(plain)) as up:
        await up.ask(post(PROMPT))
        await up.ask(post(PROMPT))
    _, record = up.records
    store = RequestStore(tmp_path / "headstart.db")
    store.write(up.records)
    store.close()
    found, compact = read_request(tmp_path / "headstart.db", record.request_id)
    assert found.matched_tokens == record.matched_tokens
    receipt = expand_receipt(compact)
    assert receipt["matched_tokens"] == record.matched_tokens
    assert receipt["cached_tokens"] == record.usage.cached_tokens
    assert receipt["error_tokens"] == record.matched_tokens - record.usage.cached_tokens
    assert receipt["total_s"] > 0


async def test_no_prompt_is_kept_for_a_receipt():
    """Records wait for the disk by the thousand, and keys of a long prompt take kilobytes."""
    async with running(*pair(plain)) as up:
        await up.ask(post(PROMPT))
    (record,) = up.records
    assert record.dispatch.request.prompt.keys == []
    assert record.dispatch.request.tokens is None


async def test_a_receipt_quotes_nothing_of_the_prompt():
    """It goes to logs and stores."""
    secret = "my secret is 4711. "
    async with running(*pair(plain)) as up:
        reply = await up.ask(post(chat(secret * 200), headers=["x-headstart-receipt: 1"]))
    (record,) = up.records
    for text in (reply.headers["x-headstart-receipt"], compact_receipt(record.dispatch).decode()):
        assert "secret" not in text
        assert "4711" not in text


@pytest.mark.parametrize("policy", ["round_robin", "prefix_hash"])
async def test_a_policy_that_asks_no_index_leaves_a_receipt_too(policy):
    """Without predictions."""
    async with running(*pair(plain), routing=RoutingConfig(policy=policy)) as up:
        reply = await up.ask(post(PROMPT, headers=["x-headstart-receipt: 1"]))
    receipt = expand_receipt(reply.headers["x-headstart-receipt"])
    assert receipt["policy"] == policy
    assert receipt["matched_tokens"] is None
    assert json.loads(reply.headers["x-headstart-receipt"])


async def test_a_session_that_a_client_names_reaches_the_policy():
    """`session_affinity` keeps it on one replica whatever its prompts are."""
    engines = pair(plain)
    async with running(*engines, routing=RoutingConfig(policy="session_affinity")) as up:
        for number in range(6):
            body = chat(f"{number} " * 1000)
            await up.ask(post(body, headers=["x-session-id: s-1"]))
    assert sorted(len(engine.requests) for engine in engines) == [0, 6]
