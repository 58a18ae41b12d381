"""A cost model from records: how long prompts took on the engines that one has.

    TTFT = base + token · u + pair · u·c        u uncached tokens, c the mean context of each

Only requests that had their replica to themselves until their first token are used: what others
added to the time is not in a record. Errors count relative to what was measured, so that short
prompts are fitted as well as long ones; coefficients that would be negative are left out. Decoding
is the median time per output token of those that were alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headstart.accounting.record import RequestRecord
from headstart.accounting.store import read_records
from headstart.errors import ConfigError
from headstart.simulator.cost import CostModel

LEAST_RECORDS: Final = 16
_MAX_RECORDS: Final = 1_000_000
_FEW_TOKENS: Final = 8
"""A step with no more is one of decoding."""


class Lone(msgspec.Struct, frozen=True):
    """A request that had its replica to itself.

    Attributes:
        uncached_tokens: >= 1.
        cached_tokens: of its prompt.
        ttft_s: without its wait in the gateway.
        tpot_s: None below two output tokens, or if it was not alone to its end.
    """

    uncached_tokens: int
    cached_tokens: int
    ttft_s: float
    tpot_s: float | None


class Fit(msgspec.Struct, frozen=True):
    """A fitted cost model and how well it predicts.

    Attributes:
        cost: fitted to all.
        num_records: used.
        median_error_ratio: median of |predicted - measured| / measured TTFT, of every other
            request, by a model that was fitted to the rest.
        p90_error_ratio: likewise, its P90.
    """

    cost: CostModel
    num_records: int
    median_error_ratio: float
    p90_error_ratio: float


def fit_store(path: Path) -> Fit:
    """Return the fit of the records in a store.

    Raises:
        ConfigError: too few of them can be used.
        StoreUnavailable: there is no such store.
    """
    records = read_records(path, limit=_MAX_RECORDS)
    return fit(lone_requests(records), name=path.stem, source=f"{path.name}, records")


def lone_requests(records: Iterable[RequestRecord]) -> list[Lone]:
    """Return those that shared their replica with nobody until their first token."""
    by_replica: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.replica:
            by_replica[record.replica].append(record)
    found = []
    for those in by_replica.values():
        those.sort(key=lambda record: record.time_s)
        busy_until = 0.0
        for index, record in enumerate(those):
            next_at = those[index + 1].time_s if index + 1 < len(those) else float("inf")
            if record.time_s >= busy_until:
                lone = _lone(record, next_at)
                if lone is not None:
                    found.append(lone)
            busy_until = max(busy_until, record.time_s + record.total_s)
    return found


def _lone(record: RequestRecord, next_at: float) -> Lone | None:
    """Return what a record shows; None if another request came before its first token."""
    usage, ttft_s = record.usage, record.ttft_s
    if not record.is_stream or record.status != 200 or ttft_s is None or record.retries:
        return None
    if usage.input_tokens is None or usage.cached_tokens is None:
        return None
    if record.time_s + ttft_s > next_at:
        return None
    is_alone = record.time_s + record.total_s <= next_at
    return Lone(
        max(usage.input_tokens - usage.cached_tokens, 1),
        usage.cached_tokens,
        ttft_s - record.queue_s,
        record.tpot_s if is_alone else None,
    )


def fit(lone: Sequence[Lone], *, name: str, source: str) -> Fit:
    """Return the cost model that fits best, and how well one of half of them fits the rest.

    Args:
        lone: in the order of their coming.
        name: of the model.
        source: where the figures are from.

    Raises:
        ConfigError: there are fewer than `LEAST_RECORDS`.
    """
    if len(lone) < LEAST_RECORDS:
        raise ConfigError(
            f"Of {source} only {len(lone)} streamed requests had their replica to themselves; "
            f"send {LEAST_RECORDS} or more of different lengths one after another."
        )
    learned, held_out = lone[::2], lone[1::2]
    half = _solve(learned)
    errors = sorted(
        abs(_predicted(one, half) - one.ttft_s) / one.ttft_s for one in held_out if one.ttft_s > 0
    )
    base_s, token_s, pair_s = _solve(lone)
    tpots = [one.tpot_s for one in lone if one.tpot_s]
    floors = ((_FEW_TOKENS, median(tpots)),) if tpots else ()
    cost = CostModel(name, source, base_s, token_s, floors=floors, pair_s=pair_s)
    return Fit(cost, len(lone), median(errors), errors[int(0.9 * (len(errors) - 1))])


def _solve(lone: Sequence[Lone]) -> tuple[float, float, float]:
    """Return base, token and pair: least squares of relative errors, none of them negative."""
    times = np.array([one.ttft_s for one in lone])
    terms = np.array([_terms(one) for one in lone])
    weighted = terms / times[:, None]
    best, least = (float(np.median(times)), 0.0, 0.0), float("inf")
    for size in (1, 2, 3):
        for columns in combinations(range(3), size):
            solved = _solve_some(weighted, columns)
            error = float(np.sum((weighted @ solved - 1.0) ** 2))
            if solved.min() >= 0.0 and error < least:
                best, least = (float(solved[0]), float(solved[1]), float(solved[2])), error
    return best


def _solve_some(weighted: NDArray[np.float64], columns: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the least-squares solution with all other columns left out. weighted: [N, 3]."""
    solved = np.zeros(weighted.shape[1])
    solved[list(columns)] = np.linalg.lstsq(
        weighted[:, list(columns)], np.ones(len(weighted)), rcond=None
    )[0]
    return solved


def _terms(one: Lone) -> tuple[float, float, float]:
    uncached = one.uncached_tokens
    return 1.0, float(uncached), uncached * (one.cached_tokens + 0.5 * uncached)


def _predicted(one: Lone, coefficients: tuple[float, float, float]) -> float:
    return sum(term * factor for term, factor in zip(_terms(one), coefficients, strict=True))
