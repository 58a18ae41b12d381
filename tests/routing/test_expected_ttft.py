"""The price of `expected_ttft`: each term does what it is there for, and ties are fair."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.config import ExpectedTtftConfig, PrefixHashConfig
from headstart.routing.expected_ttft import ExpectedTtft
from headstart.routing.load import Work
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.rates import Rates
from headstart.routing.replica import Replica
from headstart.types import PrefixKey

RATES = Rates(base_s=0.01, linear_s=1e-4, attention_s=0.0, interference=0.001, output_s=0.0)
NOW = 50.0


def fleet(num: int, rates: Rates = RATES) -> tuple[Replica, ...]:
    replicas = tuple(Replica(f"r{index}", slot=index) for index in range(num))
    for replica in replicas:
        replica.load.set_rates(rates)
    return replicas


def policy(**changes: float) -> ExpectedTtft:
    return ExpectedTtft(ExpectedTtftConfig(**changes), PrefixHashConfig())


def request(tokens: int, *matched: int, key: int = 1) -> RoutingRequest:
    num_blocks = tokens * 4 // 1024
    keys = [
        PrefixKey((key * 1000 + block).to_bytes(16, "big")[::-1]) for block in range(num_blocks)
    ]
    ends = [1024 * (block + 1) for block in range(num_blocks)]
    return RoutingRequest(
        "m",
        PromptKeys(keys, ends, tokens * 4),
        now=NOW,
        input_tokens=tokens,
        matched_tokens=matched,
    )


def send(replica: Replica, tokens: int) -> object:
    key = object()
    replica.begin(tokens * 4)
    replica.load.begin(key, work(tokens), NOW)
    return key


def work(tokens: int) -> Work:
    return Work(tokens, tokens * tokens / 2, tokens, is_stream=True)


def test_a_request_goes_where_its_prefix_is():
    """Loads being equal."""
    decision = policy().choose(request(4000, 0, 3900, 2000), fleet(3))
    assert decision.replica.name == "r1"
    assert decision.reason == "soonest"
    assert decision.prices[1] < decision.prices[2] < decision.prices[0]


def test_the_price_of_an_idle_replica_is_prefill_with_its_surcharge_and_the_base():
    """Nothing else is charged there."""
    prices = policy(prefill_surcharge=0.5).choose(request(1000, 0, 600), fleet(2)).prices
    assert prices == pytest.approx([0.1 * 1.5 + 0.01, 0.04 * 1.5 + 0.01])


def test_a_hot_prefix_spreads_once_waiting_costs_more_than_prefilling_again():
    """Not before, and then to one other replica at a time."""
    replicas, chosen = fleet(3), []
    one = policy()
    holders = {0}
    for _ in range(40):
        matched = [3900 if index in holders else 0 for index in range(3)]
        slot = one.choose(request(4000, *matched), replicas).replica.slot
        holders.add(slot)
        send(replicas[slot], 100 if matched[slot] else 4000)
        chosen.append(slot)
    assert chosen[:3] == [0, 0, 0]
    assert len(set(chosen)) == 3
    counts = Counter(chosen)
    assert max(counts.values()) - min(counts.values()) <= 16


def test_a_slow_replica_gets_less():
    """Four times as slow: its wait and its prefill cost four times as much."""
    replicas = fleet(2)
    replicas[1].load.set_rates(Rates(0.04, 4e-4, 0.0, 0.001, 0.0))
    one, counts = policy(load_weight=0.0), Counter()
    for key in range(50):
        replica = one.choose(request(1000, 0, 0, key=key), replicas).replica
        send(replica, 1000)
        counts[replica.name] += 1
    assert counts["r0"] > 2.5 * counts["r1"] > 0


def test_a_long_context_costs_attention():
    """The same uncached tokens behind a long cached prompt take longer."""
    replicas = fleet(1, Rates(0.0, 1e-4, 1e-8, 0.0, 0.0))
    one = policy(prefill_surcharge=0.0)
    short = one.choose(request(1000, 0), replicas).prices[0]
    behind = one.choose(request(51_000, 50_000), replicas).prices[0]
    assert short == pytest.approx(0.1 + 1000 * 500 * 1e-8)
    assert behind == pytest.approx(0.1 + 1000 * 50_500 * 1e-8)


def test_what_decodes_slows_prefill_down():
    """By the share that was fitted."""
    replicas = fleet(2)
    for _ in range(10):
        replicas[1].load.first_token(send(replicas[1], 1), NOW)
    one = policy(load_weight=0.0, balance_weight=0.0, prefill_surcharge=0.0)
    one.choose(request(1000, 0, 0), replicas)
    prices = one.choose(request(1000, 0, 0), replicas).prices
    assert prices == pytest.approx([0.11, 0.1 * 1.01 + 0.01])


def test_pinned_kv_has_a_price_where_the_capacity_is_known():
    """Room that others will need."""
    replicas = fleet(2)
    one = policy()
    one.choose(request(2000, 0, 0), replicas)  # a whole prompt takes 0.2 s
    for replica, tokens in zip(replicas, (900, 100), strict=True):
        replica.load.set_capacity(1000)
        replica.load.first_token(send(replica, tokens), NOW)
        replica.load.assigned_input_tokens = 0.0
    prices = one.choose(request(2000, 0, 0), replicas).prices
    assert prices[0] - prices[1] == pytest.approx(2.0 * 0.2 * 0.8)


def test_what_was_assigned_lately_has_a_price():
    """Half of a whole prompt for the whole of the difference, at a mean of one prompt each."""
    replicas = fleet(2)
    one = policy()
    one.choose(request(2000, 0, 0), replicas)  # a whole prompt takes 0.2 s
    replicas[0].load.assigned_input_tokens = 3999.0
    prices = one.choose(request(2000, 0, 0), replicas).prices
    assert prices[0] - prices[1] == pytest.approx(0.2 * 3999 / (1999.5 + 2001))


def test_evictions_are_charged_to_uncached_tokens():
    """What others will have to compute again."""
    replicas = fleet(2)
    replicas[0].load.evict_s = 1e-5
    prices = policy(eviction_weight=8.0).choose(request(1000, 500, 500), replicas).prices
    assert prices[0] - prices[1] == pytest.approx(8 * 500 * 1e-5)


def test_new_prefixes_on_an_idle_fleet_are_spread_by_tokens():
    """One at a time, so that nothing but the tie decides; none to the first by list order."""
    replicas, one, counts = fleet(4), policy(), Counter()
    for key in range(40):
        replica = one.choose(request(4000, 0, 0, 0, 0, key=key), replicas).replica
        replica.load.first_token(sent := send(replica, 4000), NOW)
        replica.load.end(sent, work(4000), NOW)
        counts[replica.name] += 1
    assert max(counts.values()) <= 12
    assert min(counts.values()) >= 8


def test_gateways_agree_on_a_new_prefix_without_talking():
    """The ring decides while what each has assigned is about even."""
    mine, theirs = fleet(4), tuple(reversed(fleet(4)))
    for key in range(30):
        asked = request(4000, 0, 0, 0, 0, key=key)
        chosen = policy().choose(asked, mine).replica.name
        assert policy().choose(asked, theirs).replica.name == chosen


def test_equals_go_to_the_one_with_the_fewest_assigned_tokens():
    """Where that is further behind than chance, whoever owns the prefix."""
    replicas = fleet(4)
    for replica in replicas[:3]:
        key = send(replica, 4000)
        replica.load.end(key, work(4000), NOW)
    for key in range(20):
        decision = policy().choose(request(4000, 0, 0, 0, 0, key=key), replicas)
        assert decision.replica.name == "r3"
        assert decision.reason == "equals, fewest assigned tokens"


def test_a_request_without_a_prompt_has_a_price_too():
    """Listing models goes somewhere; it matches nothing and teaches nothing."""
    decision = policy().choose(RoutingRequest("m"), fleet(3))
    assert isinstance(decision, Decision)
    assert len(decision.prices) == 3


def test_a_replica_that_is_warming_up_gets_its_share_by_weight():
    """A third of the others' while its weight is a third; its first request at once."""
    replicas, one = fleet(3), policy()
    replicas[2].weight = 1 / 3
    counts = Counter()
    for key in range(70):
        replica = one.choose(request(1000, 0, 0, 0, key=key), replicas).replica
        send(replica, 1000)
        counts[replica.name] += 1
    assert 5 <= counts["r2"] <= 15


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(0, 1000)),
        min_size=1,
        max_size=6,
    )
)
def test_the_choice_is_the_least_price_among_those_with_room(states):
    """Within the tie's share."""
    replicas = fleet(len(states))
    for replica, (in_flight, max_in_flight, _) in zip(replicas, states, strict=True):
        replica.max_in_flight = max(max_in_flight, 1)
        for _ in range(min(in_flight, max_in_flight)):
            send(replica, 700)
    if not any(replica.has_room for replica in replicas):
        return
    asked = request(1100, *(matched for _, _, matched in states))
    decision = policy().choose(asked, replicas)
    assert decision.replica.has_room
    price = decision.prices[decision.replica.slot]
    assert price <= min(decision.prices) * 1.01 + 1e-12
