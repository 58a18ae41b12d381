"""What is known of a replica's cache, as people see it: trust, errors of prediction, events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headstart.engines.kv_feed.statistics import KvReplicaStatistics
from headstart.prefix.tiers import Tier
from headstart.prefix.trust_mode import TrustMode
from headstart.prefix.view import ViewStatistics
from headstart.routing.shadow import Shadow

_WORST_LAST: Final = [mode.value for mode in TrustMode]


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """One replica's cache as this gateway knows it; counts grow from the start.

    Attributes:
        trust: what predictions rest on: precise, approximate or load-only.
        trust_reason: why, in words for people.
        num_trust_changes: how often it went from one to another.
        tokens_agree: our tokens are the engine's; None without a tokenizer of ours.
        num_predictions: answers that could be compared with what was predicted.
        num_off: of these, wrong by more than a block.
        error_tokens: sum of matched - cached tokens; over `num_predictions` it is the bias.
        absolute_error_tokens: sum of the absolute errors.
        capacity_tokens: as told, else as believed.
        num_learned_blocks: held, as learned from what was sent.
        num_told_blocks: held on the device, as told by events.
        num_event_batches: applied.
        num_replays: asked for.
        num_decode_failures: messages that could not be read.
        events_trouble: why there is no event stream; empty if nothing is wrong.
    """

    trust: str
    trust_reason: str
    num_trust_changes: int = 0
    tokens_agree: bool | None = None
    num_predictions: int = 0
    num_off: int = 0
    error_tokens: int = 0
    absolute_error_tokens: int = 0
    capacity_tokens: int = 0
    num_learned_blocks: int = 0
    num_told_blocks: int = 0
    num_event_batches: int = 0
    num_replays: int = 0
    num_decode_failures: int = 0
    events_trouble: str = ""


SUMMED: Final = (
    "num_trust_changes",
    "num_predictions",
    "num_off",
    "error_tokens",
    "absolute_error_tokens",
    "num_event_batches",
    "num_replays",
    "num_decode_failures",
)
"""Fields that are sums over several processes."""


@dataclass(frozen=True, slots=True)
class ShadowStatus:
    """What a policy would have done that is asked and not obeyed; counts grow from the start.

    Attributes:
        policy: its name.
        num_decisions: how often it was asked.
        num_agreed: of these, how often it chose the same replica.
        matched_tokens: what its choices held.
        acted_matched_tokens: what the choices held that were acted on.
        input_tokens: of all those requests.
    """

    policy: str
    num_decisions: int
    num_agreed: int
    matched_tokens: int
    acted_matched_tokens: int
    input_tokens: int


def cache_status(
    view: ViewStatistics, feed: KvReplicaStatistics | None, tokens_agree: bool | None
) -> CacheStatus:
    """Return one replica's status.

    Args:
        view: what the index says.
        feed: what its events' feed says; None if it is not followed.
        tokens_agree: see `CacheStatus`.
    """
    calibration, trust = view.calibration, view.trust
    streams = feed.streams if feed is not None else ()
    return CacheStatus(
        trust=trust.mode.value,
        trust_reason=trust.reason.value,
        num_trust_changes=trust.num_changes,
        tokens_agree=tokens_agree,
        num_predictions=calibration.num_answers,
        num_off=calibration.num_off,
        error_tokens=calibration.error_tokens,
        absolute_error_tokens=calibration.absolute_error_tokens,
        capacity_tokens=view.told_capacity_tokens or calibration.capacity_tokens,
        num_learned_blocks=view.approximate.num_entries,
        num_told_blocks=view.precise.num_blocks.get(Tier.DEVICE, 0),
        num_event_batches=sum(stream.batches for stream in streams),
        num_replays=sum(stream.replays for stream in streams),
        num_decode_failures=sum(stream.decode_failures for stream in streams),
        events_trouble=feed.trouble if feed is not None else "",
    )


def shadow_status(shadow: Shadow) -> ShadowStatus:
    """Return a shadow's counts."""
    return ShadowStatus(
        shadow.policy.name,
        shadow.num_decisions,
        shadow.num_agreed,
        shadow.matched_tokens,
        shadow.acted_matched_tokens,
        shadow.input_tokens,
    )


def merge_caches(views: Sequence[CacheStatus | None]) -> CacheStatus | None:
    """Make one of what each process says of one replica: sums, and the least trust."""
    known = [view for view in views if view is not None]
    if not known:
        return None
    worst = max(known, key=lambda view: _WORST_LAST.index(view.trust))
    sums = {name: sum(getattr(view, name) for view in known) for name in SUMMED}
    return replace(worst, **sums)


def merge_shadows(views: Sequence[Sequence[ShadowStatus]]) -> tuple[ShadowStatus, ...]:
    """Sum what each process says of the same policies."""
    return tuple(
        ShadowStatus(
            each[0].policy,
            sum(one.num_decisions for one in each),
            sum(one.num_agreed for one in each),
            sum(one.matched_tokens for one in each),
            sum(one.acted_matched_tokens for one in each),
            sum(one.input_tokens for one in each),
        )
        for each in zip(*views, strict=True)
    )
