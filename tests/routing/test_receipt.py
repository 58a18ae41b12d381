"""Receipts: what was known at the decision, and what came of it."""

import json

import msgspec
import pytest
from recording_view import RecordingView

from headstart.prompt.fingerprint import PromptKeys
from headstart.routing.build import build_router
from headstart.routing.config import RoutingConfig
from headstart.routing.dispatch import Dispatch
from headstart.routing.policy import RoutingRequest
from headstart.routing.receipt import (
    MAX_CANDIDATES,
    MAX_HEADER_BYTES,
    compact_receipt,
    expand_receipt,
    make_receipt,
    receipt_header,
)
from headstart.routing.replica import Replica
from headstart.routing.router import Router
from headstart.types import PrefixKey

PROMPT = PromptKeys([PrefixKey(bytes(16))], [1024], 4096)


def fleet_of(
    names: list[str], policy: str = "expected_ttft"
) -> tuple[Router, RecordingView, tuple[Replica, ...]]:
    view = RecordingView()
    router = build_router(RoutingConfig(policy=policy), view)
    replicas = tuple(Replica(name, slot=slot) for slot, name in enumerate(names))
    for replica in replicas:
        router.add_replica(replica)
    return router, view, replicas


def served() -> tuple[Router, Dispatch]:
    """One request out of three candidates, answered: r1 holds most and is chosen."""
    router, view, replicas = fleet_of(["r0", "r1", "r2"])
    busy = router.send(RoutingRequest("m", PROMPT, now=9.0), replicas)
    assert busy.replica.load.pending_tokens == 1024
    view.held.update({0: 100, 1: 900, 2: 0})
    dispatch = router.send(RoutingRequest("m", PROMPT, now=10.0), replicas)
    router.first_token(dispatch, 10.05)
    router.answered(dispatch, 1030, 880, 12, 10.5)
    router.ended(dispatch, 10.5)
    return router, dispatch


def test_a_receipt_says_who_could_have_taken_it_and_why_one_did():
    """The chosen one first, then the others by price."""
    _, dispatch = served()
    receipt = make_receipt(dispatch)
    assert (receipt.policy, receipt.reason) == ("expected_ttft", "soonest")
    assert receipt.input_tokens == 1024
    assert receipt.num_candidates == 3
    chosen, *_ = receipt.candidates
    assert (chosen.replica, chosen.matched_tokens, chosen.mode) == ("r1", 900, "approximate")
    prices = [candidate.price for candidate in receipt.candidates]
    assert prices == sorted(prices)
    assert sum(candidate.pending_tokens for candidate in receipt.candidates) == 1024
    assert receipt.regret_price == 0.0


def test_a_receipt_is_filled_in_with_the_outcome():
    """TTFT, what the engine reports, and how far the prediction was off."""
    _, dispatch = served()
    full = expand_receipt(compact_receipt(dispatch))
    assert full["ttft_s"] == 0.05
    assert full["total_s"] == 0.5
    assert full["reported_input_tokens"] == 1030
    assert full["cached_tokens"] == 880
    assert full["matched_tokens"] == 900
    assert full["error_tokens"] == 20
    assert full["regret_tokens"] == 20
    assert full["replica"] == "r1"
    assert full["candidates"][0]["in_flight"] == 0


def test_a_receipt_before_the_outcome_leaves_it_open():
    """As in the response header, which is sent before there is one."""
    router, _, replicas = fleet_of(["r0", "r1"])
    dispatch = router.send(RoutingRequest("m", PROMPT, now=9.0), replicas)
    full = expand_receipt(receipt_header(dispatch))
    assert [full[name] for name in ("ttft_s", "total_s", "cached_tokens", "error_tokens")] == [
        None
    ] * 4


def test_regret_is_what_the_price_would_have_saved():
    """A policy that is overruled by room has some; a blind one has no price to regret."""
    router, view, replicas = fleet_of(["r0", "r1"])
    view.held.update({0: 1000, 1: 0})
    replicas[0].max_in_flight = 0
    full = expand_receipt(
        compact_receipt(router.send(RoutingRequest("m", PROMPT, now=9.0), replicas))
    )
    assert full["replica"] == "r1"
    assert full["regret_tokens"] == 1000
    blind, _, replicas = fleet_of(["r0", "r1"], "round_robin")
    full = expand_receipt(
        compact_receipt(blind.send(RoutingRequest("m", PROMPT, now=9.0), replicas))
    )
    assert full["regret_price"] is None
    assert full["regret_tokens"] is None
    assert full["candidates"][0]["matched_tokens"] is None


def test_a_receipt_of_a_large_fleet_lists_the_best():
    """And says how many there were."""
    router, view, replicas = fleet_of([f"replica-{number}" for number in range(40)])
    view.held.update({slot: 10 * slot for slot in range(40)})
    receipt = make_receipt(router.send(RoutingRequest("m", PROMPT, now=1.0), replicas))
    assert receipt.num_candidates == 40
    assert [candidate.replica for candidate in receipt.candidates] == [
        f"replica-{number}" for number in range(39, 39 - MAX_CANDIDATES, -1)
    ]


@pytest.mark.parametrize("name", ["ä" * 60, "r" * 900, "line\r\nbreak: x", '"quoted"'])
def test_a_header_is_short_and_plain(name):
    """Whatever replicas are called."""
    router, _, replicas = fleet_of([f"{name}{number}" for number in range(20)])
    header = receipt_header(router.send(RoutingRequest("m", PROMPT, now=1.0), replicas))
    assert len(header) <= MAX_HEADER_BYTES
    assert header.isascii()
    assert header.isprintable()
    assert json.loads(header)[0] == "expected_ttft"


def test_what_is_no_receipt_is_refused():
    """Records may be older or damaged."""
    with pytest.raises(msgspec.DecodeError):
        expand_receipt(b"{}")
