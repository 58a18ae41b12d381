"""The replica where the first token is expected soonest, with what that costs others.

All terms are seconds:

    W   wait: prefill of what is pending there, less the time since it was begun
    P   prefill of the request's uncached tokens, in the context of those that are cached
    s   factor by which what decodes slows prefilling down
    F   moving average of a whole prompt's prefill
    n   requests in flight there; n̄ their mean over the candidates; u the uncached tokens

    price = W + P·s·(1 + surcharge + pending if W > 0)   own wait, and that of those who wait, too
          + base                                         first token of an all-cached prompt
          + eviction · u · harm of evicting a token      what others find gone
          + load · F · n / (n̄ + 2)                       load relative to the fleet's
          + balance · F · a / (ā + size)                 the same, of the last minutes
          + kv · F · share of KV that requests pin       room for what comes

Loads are relative, because fixed thresholds do not transfer between fleets, and counted in whole
prompts, so that they weigh more where prompts are long. That of the last minutes (`a`, prompt
tokens assigned) sees what the present one does not: a replica whose requests are all short work
has few of them at a time and yet gets most of them, which are then decoded there.

A hot prefix spreads by itself: once the wait where it is costs more than prefilling it again, a
second replica is cheaper, and then has it as well. The weights are described in docs/routing.md.

Equals are common: a new prefix on an idle fleet costs the same everywhere. They go to the replica
that was assigned the fewest uncached tokens lately, and where those are about even to the first on
the hash ring, so that gateways that do not know of each other's requests agree.

Source: a candidate of a simulation over six workloads, with Preble's prefill fits
(arXiv:2407.00023); relative load after LMetric (arXiv:2603.15202).
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from headstart.routing.config import ExpectedTtftConfig, PrefixHashConfig
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.prefix_hash import leading_key
from headstart.routing.replica import Replica
from headstart.routing.ring import RingCache

_FULL_GAIN: Final = 0.05
_MOST_FULL: Final = 4.0
"""A prompt counts in the mean with at most so many times the mean."""

_SOFTENER: Final = 2.0
"""Added to the mean number in flight: with few requests a difference of one says little."""


class ExpectedTtft:
    """Chooses the least price; see the module.

    Args:
        config: weights.
        blocks: which leading blocks of a prompt have a place on the ring.
    """

    __slots__ = ("_blocks", "_config", "_full_s", "_rings")

    def __init__(self, config: ExpectedTtftConfig, blocks: PrefixHashConfig) -> None:
        self._config = config
        self._blocks = blocks
        self._rings = RingCache()
        self._full_s = 0.0

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "expected_ttft"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return True

    def choose(self, request: RoutingRequest, candidates: Sequence[Replica]) -> Decision:
        """Choose the cheapest of `candidates`.

        Cost: about 1 us for each candidate and 2 us.
        """
        prices = self._prices(request, candidates)
        least = min(prices)
        limit = least * (1.0 + self._config.tie_ratio)
        cheapest = [index for index, price in enumerate(prices) if price <= limit]
        if len(cheapest) == 1:
            index, reason = cheapest[0], "soonest"
        else:
            index, reason = self._break_tie(request, candidates, cheapest)
        replica = candidates[index]
        self._note_full(request.input_tokens, replica)
        return Decision(replica, "expected_ttft", reason, prices)

    def _prices(self, request: RoutingRequest, candidates: Sequence[Replica]) -> list[float]:
        config, now, num_tokens = self._config, request.now, request.input_tokens
        matched_tokens = request.matched_tokens or (0,) * len(candidates)
        factor, eviction = 1.0 + config.prefill_surcharge, config.eviction_weight
        kv_s = self._full_s * config.kv_weight
        load_s, balance_s = self._shares_s(candidates, num_tokens)
        prices: list[float] = []
        add = prices.append
        for replica, matched in zip(candidates, matched_tokens, strict=True):
            load, weight = replica.load, replica.weight
            uncached = num_tokens - matched
            if uncached < 1:
                uncached = 1  # the last token is always computed
            prefill_s = uncached * (
                load.linear_s + (num_tokens - 0.5 * uncached) * load.attention_s
            )
            price = (
                prefill_s * factor
                + load.base_s
                + (load.in_flight * load_s + load.assigned_input_tokens * balance_s) / weight
            )
            evict_s, kv_share = load.evict_s, load.kv_share
            if evict_s:
                price += uncached * evict_s * eviction
            if kv_share:
                price += kv_share * kv_s
            backlog_s = load.backlog_s
            if backlog_s:
                # The same as `load.wait_s`, without the call.
                passed, credit_s = now - load.progress_at, load.credit_s
                wait_s = backlog_s - (passed if passed < credit_s else credit_s)
                if wait_s > 0.0:
                    price += wait_s / weight + prefill_s * load.num_pending
            if replica.in_flight >= replica.max_in_flight:
                price = inf
            add(price)
        return prices

    def _shares_s(self, candidates: Sequence[Replica], num_tokens: int) -> tuple[float, float]:
        """Return the price of a request in flight, and of a prompt token assigned lately."""
        in_flight, assigned = 0, 0.0
        for replica in candidates:
            load = replica.load
            if load.is_stale:
                load.settle()
            in_flight += load.in_flight
            assigned += load.assigned_input_tokens
        config, full_s, num = self._config, self._full_s, len(candidates)
        return (
            full_s * config.load_weight / (in_flight / num + _SOFTENER),
            full_s * config.balance_weight / (assigned / num + num_tokens + 1),
        )

    def _break_tie(
        self, request: RoutingRequest, candidates: Sequence[Replica], equals: Sequence[int]
    ) -> tuple[int, str]:
        """Return one of `equals`, indexes of candidates, and why."""
        assigned = [
            candidates[index].load.assigned_tokens / candidates[index].weight for index in equals
        ]
        mean = sum(assigned) / len(assigned)
        limit = min(assigned) + mean * self._config.spread
        even = [index for index, tokens in zip(equals, assigned, strict=True) if tokens <= limit]
        if len(even) == 1:
            return even[0], "equals, fewest assigned tokens"
        key = leading_key(request.prompt, self._blocks)
        if key is None:
            least = assigned.index(min(assigned))
            return equals[least], "equals, fewest assigned tokens"
        ring = self._rings.ring_of(candidates)
        return next(index for index in ring.walk(key) if index in even), "equals, ring order"

    def _note_full(self, num_tokens: int, replica: Replica) -> None:
        rates, full_s = replica.load.rates, self._full_s
        # The same as `rates.prefill_s`, without the call.
        seconds = num_tokens * (rates.linear_s + 0.5 * num_tokens * rates.attention_s)
        if full_s == 0.0:
            self._full_s = seconds
        else:
            # One huge prompt, which the engine may refuse, says little about the others.
            self._full_s += _FULL_GAIN * (min(seconds, _MOST_FULL * full_s) - full_s)
