"""A replay answers every request once, in order, and knows what the router did."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.routing.build import build_policy
from headstart.routing.config import PolicyName, RoutingConfig
from headstart.routing.policy import Policy
from headstart.simulator.arrivals import Arrival
from headstart.simulator.cost import MISTRAL_7B_A100
from headstart.simulator.engine import EngineModel
from headstart.simulator.prompts import prepare
from headstart.simulator.replay import FleetModel, Replay
from headstart.simulator.trace import TraceRequest


def arrivals_of(num: int, families: int = 5, gap_s: float = 0.05) -> list[Arrival]:
    """Requests of 10 blocks each, 8 of which a family shares."""
    found = []
    for number in range(num):
        family = number % families
        blocks = (*range(100 * family, 100 * family + 8), 10_000 + 2 * number, 10_001 + 2 * number)
        found.append(Arrival(number * gap_s, TraceRequest(0.0, 10 * 64 + 5, 20, blocks)))
    return found


def play(
    arrivals: list[Arrival], policy: PolicyName = "expected_ttft", **changes: object
) -> Replay:
    """Play `arrivals` against small engines."""
    settings = {"num_replicas": 3, **changes}
    model = FleetModel(EngineModel(MISTRAL_7B_A100, 200, 64), **settings)

    def make_policy(_number: int) -> Policy:
        return build_policy(RoutingConfig(policy=policy))

    prompts = prepare([arrival.request for arrival in arrivals], 64)
    replay = Replay(arrivals, prompts, model, make_policy)
    replay.run()
    return replay


@pytest.mark.parametrize("policy", ["expected_ttft", "round_robin", "lmetric", "prefix_hash"])
@pytest.mark.parametrize("delay_s", [0.0, 0.5])
def test_every_request_is_answered(policy: PolicyName, delay_s: float) -> None:
    """First tokens come after sending, ends after first tokens, and nothing is left behind."""
    replay = play(arrivals_of(200), policy, event_delay_s=delay_s)
    for one in replay.seen:
        assert one is not None
        assert one.sent_at < one.first_at < one.ended_at
        assert 0 <= one.cached_tokens <= 8 * 64
    for engine in replay.engines:
        engine.pool.check_integrity()
        assert not engine.num_running
        assert not engine.num_waiting


def test_what_is_seen_directly_is_what_is_found() -> None:
    """With requests far apart and no delay, a prediction is never wrong."""
    replay = play(arrivals_of(100, gap_s=2.0))
    assert [one.matched_tokens for one in replay.seen if one] == [
        one.cached_tokens for one in replay.seen if one
    ]
    assert replay.outcome().error_ratio == 0.0
    assert replay.outcome().hit_ratio > 0.7


def test_late_events_lead_astray() -> None:
    """Gateways that see caches seconds late, and do not share, hit less than one that sees now."""
    now = play(arrivals_of(300, families=30)).outcome()
    late = play(arrivals_of(300, families=30), event_delay_s=30.0, num_gateways=16).outcome()
    assert late.hit_ratio < 0.9 * now.hit_ratio
    assert late.error_ratio > now.error_ratio


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.sampled_from(["expected_ttft", "sglang_cache_aware"]))
def test_a_session_waits_for_its_answers(seed: int, policy: PolicyName) -> None:
    """No request of a session is sent before the one before it was answered."""
    found = [
        Arrival(0.01 * number, one.request, number - 3 if number >= 3 else -1)
        for number, one in enumerate(arrivals_of(30 + seed))
    ]
    replay = play(found, policy)
    for arrival, one in zip(found, replay.seen, strict=True):
        assert one is not None
        if arrival.after >= 0:
            before = replay.seen[arrival.after]
            assert before is not None
            assert one.sent_at >= before.ended_at


def test_what_no_engine_could_hold_is_refused() -> None:
    """It counts as failed, and what follows it goes on."""
    huge = TraceRequest(0.0, 64 * 300, 5, tuple(range(300)))
    replay = play([Arrival(0.0, huge), Arrival(0.1, huge, 0), *arrivals_of(5, gap_s=1.0)[1:]])
    assert replay.outcome().failed == 2
    assert replay.outcome().requests == 6


def test_the_same_seed_gives_the_same() -> None:
    """Also with several gateways."""
    one, two = (play(arrivals_of(80), num_gateways=4, event_delay_s=0.1) for _ in range(2))
    assert one.seen == two.seen


def test_gateways_that_share_hit_as_much_as_one() -> None:
    """Told of each other's dispatches sixteen come near one; alone they are a disaster."""

    def hit_ratio(num_gateways: int, gossip_s: float) -> float:
        replay = play(
            arrivals_of(400, families=30, gap_s=0.02),
            num_gateways=num_gateways,
            gossip_s=gossip_s,
            knowledge="approximate",
        )
        for one in replay.seen:
            assert one is not None
            assert one.ended_at > 0
        return replay.outcome().hit_ratio

    one, alone, sharing = hit_ratio(1, 0.0), hit_ratio(16, 0.0), hit_ratio(16, 0.005)
    assert alone < 0.7 * one
    assert sharing > 0.9 * one


def test_an_index_of_what_was_sent_is_nearly_exact() -> None:
    """One gateway that learns from its own dispatches hits as one that sees the caches."""
    exact = play(arrivals_of(300, families=30)).outcome()
    learned = play(arrivals_of(300, families=30), knowledge="approximate").outcome()
    assert learned.hit_ratio > 0.95 * exact.hit_ratio
    assert learned.error_ratio < 0.1
