"""The router: one request's life through index, policy, load and rates."""

import pytest
from recording_view import RecordingView

from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.build import build_router
from headstart.routing.config import RoutingConfig
from headstart.routing.policy import RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.router import Router
from headstart.types import PrefixKey


def make(
    policy: str = "expected_ttft", shadow: tuple[str, ...] = (), num: int = 2
) -> tuple[Router, RecordingView, tuple[Replica, ...]]:
    view = RecordingView()
    router = build_router(RoutingConfig(policy=policy, shadow=shadow), view)
    replicas = tuple(Replica(f"r{slot}", slot=slot) for slot in range(num))
    for replica in replicas:
        router.add_replica(replica)
    view.heard.clear()
    return router, view, replicas


def request(num_bytes: int = 4096, now: float = 1.0, **fields: object) -> RoutingRequest:
    num_blocks = num_bytes // 1024
    keys = [PrefixKey(block.to_bytes(16, "big")) for block in range(num_blocks)]
    ends = [1024 * (block + 1) for block in range(num_blocks)]
    prompt = PromptKeys(keys, ends, num_bytes)
    return RoutingRequest("m", prompt, prompt_bytes=num_bytes + 100, now=now, **fields)


def test_a_request_is_counted_from_being_sent_to_its_end():
    """In flight, pending, decoding, gone."""
    router, _, replicas = make()
    dispatch = router.send(request(), replicas)
    replica, load = dispatch.replica, dispatch.replica.load
    assert (replica.in_flight, load.num_pending, load.num_decoding) == (1, 1, 0)
    assert replica.in_flight_bytes == 4196
    router.first_token(dispatch, 1.5)
    router.first_token(dispatch, 1.6)
    assert (load.num_pending, load.num_decoding) == (0, 1)
    assert dispatch.first_at == 1.5
    router.answered(dispatch, 1000, 0, 20, 2.0)
    router.ended(dispatch, 2.0)
    assert (replica.in_flight, load.in_flight, load.active_tokens) == (0, 0, 0)


def test_the_index_hears_of_it():
    """Asked, told of the dispatch, told of the answer with what the engine reported."""
    router, view, replicas = make()
    view.held[1] = 900
    dispatch = router.send(request(), replicas)
    assert dispatch.replica is replicas[1]
    assert dispatch.matched_tokens == 900
    router.answered(dispatch, 1024, 896, 20, 2.0)
    router.ended(dispatch, 2.0)
    assert view.heard == [
        ("match", (0, 1)),
        ("dispatched", 1),
        ("answered", 1, 900, 896),
    ]


def test_a_request_that_fails_is_no_evidence_of_a_prefix():
    """It may not have been computed."""
    router, view, replicas = make()
    dispatch = router.send(request(), replicas)
    router.ended(dispatch, 2.0)
    assert view.heard[-1] == ("failed", dispatch.replica.slot)
    assert dispatch.replica.load.in_flight == 0


def test_a_client_that_leaves_after_the_first_token_leaves_a_prefix():
    """The prompt was computed, and nothing is known of the engine's figures."""
    router, view, replicas = make()
    dispatch = router.send(request(), replicas)
    router.first_token(dispatch, 1.2)
    router.ended(dispatch, 1.3)
    assert view.heard[-1] == ("answered", dispatch.replica.slot, 0, None)


def test_a_request_without_a_prompt_touches_no_index():
    """GET /v1/models is routed, and teaches nothing."""
    router, view, replicas = make()
    dispatch = router.send(RoutingRequest("", now=1.0), replicas)
    router.answered(dispatch, None, None, None, 9.0)
    router.ended(dispatch, 9.0)
    assert view.heard == []
    assert dispatch.matched_tokens is None
    assert router.rates.fit(dispatch.replica.slot) is None


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "prefix_hash"])
def test_policies_that_read_no_index_cost_none(policy):
    """It is neither asked nor taught."""
    router, view, replicas = make(policy)
    dispatch = router.send(request(), replicas)
    router.answered(dispatch, 1000, 0, 5, 2.0)
    router.ended(dispatch, 2.0)
    router.remove_replica(replicas[0])
    assert view.heard == []
    assert not router.uses_index


def test_tokens_are_counted_where_they_are_known():
    """And asked of the index otherwise, so that they are on the scale of what matches."""
    router, _, replicas = make()
    counted = router.send(request(tokens=TokenPrompt(777, {})), replicas)
    assert counted.request.input_tokens == 777
    assert router.send(request(), replicas).request.input_tokens == 4096 // 4


def test_without_an_index_the_bytes_of_a_token_are_learned_here():
    """From what engines report."""
    router, _, replicas = make("round_robin")
    for _ in range(200):
        dispatch = router.send(request(), replicas)
        router.answered(dispatch, 2048, 0, 5, 1.5)
        router.ended(dispatch, 1.5)
    assert router.send(request(), replicas).request.input_tokens == pytest.approx(2048, rel=0.01)


def test_rates_are_learned_from_answers():
    """Streamed or in one piece; a replica ten times as slow as the other is priced so."""
    router, _, replicas = make("round_robin", ("expected_ttft",))
    now = 0.0
    for number in range(80):
        now += 20.0
        num_tokens = 500 if number % 3 else 4000
        dispatch = router.send(request(num_tokens * 4, now, is_stream=number % 2 == 0), replicas)
        slowness = 10 if dispatch.replica is replicas[1] else 1
        end = now + slowness * (0.02 + num_tokens * 1e-4)
        if number % 2 == 0:
            router.first_token(dispatch, end)
        router.answered(dispatch, num_tokens, 0, 1, end)
        router.ended(dispatch, end)
    quick, slow = (replica.load.rates for replica in replicas)
    assert quick.prefill_s(2000, 0.0) == pytest.approx(0.2, rel=0.3)
    assert slow.prefill_s(2000, 0.0) == pytest.approx(2.0, rel=0.3)


def test_a_replica_under_load_teaches_too():
    """What was before a request is part of what its time is explained by."""
    router, _, replicas = make(num=1)
    (replica,), free_at, open_ones, now = replicas, 0.0, [], 0.0
    for _ in range(120):
        dispatch = router.send(request(8000, now), replicas)
        free_at = max(free_at, now) + 0.4
        open_ones.append((free_at, dispatch))
        if len(open_ones) == 6:
            now, first = open_ones.pop(0)
            router.first_token(first, now)
            router.answered(first, 2000, 0, 1, now)
            router.ended(first, now)
    assert replica.load.rates.prefill_s(2000, 0.0) == pytest.approx(0.4, rel=0.15)


def test_shadows_are_asked_and_not_obeyed():
    """They count how often they agree, and what they would have matched."""
    router, view, replicas = make("round_robin", ("expected_ttft", "sglang_cache_aware"))
    assert router.uses_index
    view.held[1] = 1000
    for _ in range(4):
        dispatch = router.send(request(), replicas)
        router.ended(dispatch, 1.0)
    assert [shadow.policy.name for shadow in router.shadows] == [
        "expected_ttft",
        "sglang_cache_aware",
    ]
    for shadow in router.shadows:
        assert (shadow.num_decisions, shadow.num_agreed) == (4, 2)
        assert (shadow.matched_tokens, shadow.acted_matched_tokens) == (4000, 2000)
        assert shadow.input_tokens == 4096


def test_an_ended_request_does_not_end_again():
    """That would count another one out."""
    router, _, replicas = make()
    dispatch = router.send(request(), replicas)
    router.ended(dispatch, 1.0)
    with pytest.raises(AssertionError):
        router.ended(dispatch, 1.0)


def test_evictions_are_priced_by_what_will_be_missed():
    """Where prompts come back after a minute, what was idle for a second is; where there is room
    nothing is."""
    router, view, replicas = make()
    view.idle_s[1] = 1.0
    for number in range(300):
        router.ended(router.send(request(now=60.0 * number), replicas), 60.0 * number)
    idle, full = (replica.load for replica in replicas)
    assert idle.evict_s == 0.0
    assert full.evict_s > 0.9 * full.rates.linear_s
    assert full.kv_share == 0.0
    dispatch = router.send(request(now=1e5), replicas)
    dispatch.replica.load.settle()
    assert dispatch.replica.load.kv_share == pytest.approx(1024 / 1_000_000)
