"""The receipt of a decision: who could have taken the request, at what price, and what came of it.

The router only keeps the dispatch, and whoever writes it down makes a receipt of it. The compact
form is what records and the response header hold, and the full form is made of it, so that a
receipt outlives the gateway that wrote it.
"""

import json
from math import inf
from typing import Final

import msgspec

from headstart.routing.dispatch import Dispatch
from headstart.types import JsonObject

MAX_CANDIDATES: Final = 8
"""Candidates of a receipt: the chosen one and the cheapest others."""

MAX_HEADER_BYTES: Final = 2048
"""What a receipt may take of a response's head."""


class CandidateReceipt(msgspec.Struct, frozen=True, array_like=True):
    """One candidate as the policy saw it.

    Attributes:
        replica: its name.
        matched_tokens: that the index predicted it holds; None where no index was asked.
        mode: how far that was to be believed; None where no index was asked.
        in_flight: requests that it had.
        pending_tokens: uncached tokens that it had yet to prefill.
        price: in the policy's unit; None if the policy does not price, or it was full.
    """

    replica: str
    matched_tokens: int | None
    mode: str | None
    in_flight: int
    pending_tokens: int
    price: float | None


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """One decision and its outcome.

    Attributes:
        policy: that chose.
        reason: a few words for people.
        input_tokens: of the prompt, as routing took it.
        num_candidates: all of them, listed or not.
        candidates: the chosen one first, then the others, cheapest first.
        regret_price: price of the choice over the least; None if the policy does not price.
        regret_tokens: what the best candidate was thought to hold over what was found in the
            chosen one's cache; over what was thought to be there until the engine has reported.
        ttft_s: from being sent to the first token; None if it was not seen.
        total_s: from being sent to the end; None if it has not ended.
        reported_input_tokens: by the engine; None if it did not say. Likewise the next two.
        cached_tokens: of these, from its cache.
        output_tokens: generated.
    """

    policy: str
    reason: str
    input_tokens: int
    num_candidates: int
    candidates: tuple[CandidateReceipt, ...]
    regret_price: float | None = None
    regret_tokens: int | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    reported_input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Receipt)


def make_receipt(dispatch: Dispatch, max_candidates: int = MAX_CANDIDATES) -> Receipt:
    """Return the receipt of `dispatch`, with as much of the outcome as there is.

    Args:
        dispatch: made by the router.
        max_candidates: listed, >= 1.
    """
    return _DECODER.decode(compact_receipt(dispatch, max_candidates))


def compact_receipt(dispatch: Dispatch, max_candidates: int = MAX_CANDIDATES) -> bytes:
    """Return the receipt as one line of JSON, an array without names: what a record keeps.

    Cost: about 0.5 us for each candidate and 2 us.
    """
    decision, request = dispatch.decision, dispatch.request
    sent_at, first_at, ended_at = request.now, dispatch.first_at, dispatch.ended_at
    # In the order of the fields of `Receipt`; making one and encoding it takes twice as long.
    return _ENCODER.encode(
        (
            decision.policy,
            decision.reason,
            request.input_tokens,
            len(dispatch.candidates),
            _candidates(dispatch, max_candidates),
            _regret_price(dispatch),
            _regret_tokens(dispatch),
            None if first_at is None else round(first_at - sent_at, 6),
            None if ended_at is None else round(ended_at - sent_at, 6),
            dispatch.input_tokens,
            dispatch.cached_tokens,
            dispatch.output_tokens,
        )
    )


def receipt_header(dispatch: Dispatch) -> str:
    """Return the receipt as the value of a header field.

    It is the compact form in ASCII, with as many candidates as `MAX_HEADER_BYTES` has room for.
    """
    receipt = make_receipt(dispatch)
    for num_candidates in range(len(receipt.candidates), -1, -1):
        kept = receipt.candidates[:num_candidates]
        builtins = msgspec.to_builtins(msgspec.structs.replace(receipt, candidates=kept))
        value = json.dumps(builtins, separators=(",", ":"))
        if len(value) <= MAX_HEADER_BYTES:
            return value
    return "[]"


def expand_receipt(compact: bytes | str) -> JsonObject:
    """Return a compact receipt with a name for everything, and what follows from it.

    Raises:
        msgspec.DecodeError: it is not one.
    """
    receipt = _DECODER.decode(compact)
    full = _named(receipt)
    full["candidates"] = [_named(candidate) for candidate in receipt.candidates]
    chosen = receipt.candidates[0] if receipt.candidates else None
    full["replica"] = chosen.replica if chosen is not None else None
    matched = chosen.matched_tokens if chosen is not None else None
    known = matched is not None and receipt.cached_tokens is not None
    full["matched_tokens"] = matched
    full["error_tokens"] = matched - receipt.cached_tokens if known else None  # type: ignore[operator]
    return full


def _named(struct: msgspec.Struct) -> JsonObject:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _order(dispatch: Dispatch) -> list[int]:
    prices, matched = dispatch.decision.prices, dispatch.request.matched_tokens
    others = [index for index in range(len(dispatch.candidates)) if index != dispatch.index]
    if len(others) > 1:
        others.sort(
            key=lambda index: (prices[index] if prices else 0.0, -matched[index] if matched else 0)
        )
    return [dispatch.index, *others]


def _candidates(dispatch: Dispatch, max_candidates: int) -> list[tuple[object, ...]]:
    """Return candidates in the order of the fields of `CandidateReceipt`."""
    request, prices = dispatch.request, dispatch.decision.prices
    matched_tokens, modes = request.matched_tokens, request.modes
    candidates, in_flight = dispatch.candidates, dispatch.in_flight
    pending_tokens = dispatch.pending_tokens
    return [
        (
            candidates[index].name,
            matched_tokens[index] if matched_tokens else None,
            modes[index] if modes else None,
            in_flight[index],
            pending_tokens[index],
            _rounded(prices[index]) if prices else None,
        )
        for index in _order(dispatch)[:max_candidates]
    ]


def _regret_price(dispatch: Dispatch) -> float | None:
    prices = dispatch.decision.prices
    return _rounded(prices[dispatch.index] - min(prices)) if prices else None


def _regret_tokens(dispatch: Dispatch) -> int | None:
    matched = dispatch.request.matched_tokens
    if not matched:
        return None
    found = dispatch.cached_tokens
    return max(max(matched) - (matched[dispatch.index] if found is None else found), 0)


def _rounded(price: float) -> float | None:
    return round(price, 6) if price < inf else None
