"""What a replay came to."""

from collections.abc import Sequence
from math import nan

import msgspec


class Seen(msgspec.Struct, gc=False):
    """One request as its client and its engine saw it.

    Attributes:
        sent_at: virtual seconds; of the first attempt.
        input_tokens: of its prompt.
        slot: of the replica that answered; -1 while none has.
        matched_tokens: that the router expected there.
        cached_tokens: that the engine spared.
        output_tokens: generated.
        first_at: when the first token came.
        ended_at: when the answer was complete; negative if it never was.
    """

    sent_at: float
    input_tokens: int
    slot: int = -1
    matched_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_at: float = -1.0
    ended_at: float = -1.0


class Outcome(msgspec.Struct, frozen=True):
    """Figures of one replay; times in seconds, of the requests that were counted.

    Attributes:
        requests: that were counted.
        failed: of these, that were never answered.
        hit_ratio: cached over input tokens.
        ttft_mean_s, ttft_p50_s, ttft_p90_s, ttft_p99_s: from being sent to the first token.
        tpot_p50_s: median time per output token after the first.
        goodput: requests per second whose first token came in time.
        goodput_ratio: share of all requests for which it did.
        imbalance: prompt tokens of the busiest replica over the mean.
        evicted_blocks: of all caches, over the whole replay.
        error_ratio: mean absolute error of the matched tokens, over the mean input.
        duration_s: from the first counted request to the last one's end.
    """

    requests: int
    failed: int
    hit_ratio: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    goodput: float
    goodput_ratio: float
    imbalance: float
    evicted_blocks: int
    error_ratio: float
    duration_s: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of an ascending sequence lies; NaN of nothing.

    Interpolates between neighbours (NumPy's default, type 7 of Hyndman and Fan).
    """
    if not ordered:
        return nan
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def outcome(
    seen: Sequence[Seen], num_replicas: int, evicted_blocks: int, objective_s: float
) -> Outcome:
    """Return the figures of `seen`, the requests that count.

    Args:
        seen: in any order.
        num_replicas: of the fleet.
        evicted_blocks: of all caches.
        objective_s: TTFT within which an answer is good.
    """
    answered = [one for one in seen if one.ended_at >= 0.0]
    ttfts = sorted(one.first_at - one.sent_at for one in answered)
    tpots = sorted(
        (one.ended_at - one.first_at) / (one.output_tokens - 1)
        for one in answered
        if one.output_tokens > 1
    )
    input_tokens = sum(one.input_tokens for one in answered)
    assigned = [0] * num_replicas
    for one in answered:
        assigned[one.slot] += one.input_tokens
    num_good = sum(ttft <= objective_s for ttft in ttfts)
    start = min((one.sent_at for one in seen), default=0.0)
    duration_s = max((one.ended_at for one in answered), default=start) - start
    return Outcome(
        requests=len(seen),
        failed=len(seen) - len(answered),
        hit_ratio=_ratio(sum(one.cached_tokens for one in answered), input_tokens),
        ttft_mean_s=_ratio(sum(ttfts), len(ttfts)),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p90_s=percentile(ttfts, 0.9),
        ttft_p99_s=percentile(ttfts, 0.99),
        tpot_p50_s=percentile(tpots, 0.5),
        goodput=_ratio(num_good, duration_s),
        goodput_ratio=_ratio(num_good, len(seen)),
        imbalance=_ratio(max(assigned) * num_replicas, input_tokens),
        evicted_blocks=evicted_blocks,
        error_ratio=_ratio(
            sum(abs(one.matched_tokens - one.cached_tokens) for one in answered), input_tokens
        ),
        duration_s=duration_s,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
