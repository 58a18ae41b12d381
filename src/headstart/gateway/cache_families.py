"""Metric families of what is known of replicas' caches, and of what other policies would do."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headstart.gateway.cache_status import CacheStatus, ShadowStatus
from headstart.gateway.state import GatewayStatus
from headstart.prefix.trust_mode import TrustMode

_COUNTERS: Final = (
    ("num_predictions", "predictions", "Answers whose cached tokens were compared."),
    ("num_off", "predictions_off", "Of these, predictions that were wrong by more than a block."),
    (
        "absolute_error_tokens",
        "prediction_error_tokens",
        "Sum of absolute differences between matched and cached tokens.",
    ),
    ("num_trust_changes", "trust_changes", "How often it went from one mode of trust to another."),
    ("num_event_batches", "kv_event_batches", "Batches of KV events that were applied."),
    ("num_replays", "kv_event_replays", "Replays of KV events that were asked for."),
    ("num_decode_failures", "kv_event_decode_failures", "KV events that could not be read."),
)

_GAUGES: Final = (
    (
        "error_tokens",
        "prediction_bias_tokens",
        "Sum of matched - cached tokens; over the predictions it is the bias.",
    ),
    ("capacity_tokens", "kv_capacity_tokens", "What it is believed to hold."),
    ("num_learned_blocks", "learned_blocks", "Blocks of prompt that it should hold, by routing."),
    ("num_told_blocks", "told_blocks", "Blocks of tokens that it holds, by its KV events."),
)

_SHADOWS: Final = (
    ("num_decisions", "decisions", "Requests for which the policy was asked and not obeyed."),
    ("num_agreed", "agreements", "Of these, those that went where it would have sent them."),
    ("input_tokens", "input_tokens", "Input tokens of these requests."),
    ("matched_tokens", "matched_tokens", "Of these, predicted on the replica of its choice."),
    (
        "acted_matched_tokens",
        "acted_matched_tokens",
        "Of these, predicted on the replica that they went to.",
    ),
)


def cache_families(status: GatewayStatus) -> Iterator[Metric]:
    """Build the families of all replicas' caches; none where no index is asked."""
    caches = [(each.name, each.cache) for each in status.replicas if each.cache is not None]
    if caches:
        yield from _figures(caches)
        yield _trust(caches)
        yield _agreement(caches)
    if status.shadows:
        yield from _shadows(status.shadows)


def _figures(caches: Sequence[tuple[str, CacheStatus]]) -> Iterator[Metric]:
    for kind, figures in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for field, name, documentation in figures:
            family = kind(f"headstart_replica_{name}", documentation, labels=("replica",))
            for replica, cache in caches:
                family.add_metric((replica,), getattr(cache, field))
            yield family


def _trust(caches: Sequence[tuple[str, CacheStatus]]) -> Metric:
    family = GaugeMetricFamily(
        "headstart_replica_trust",
        "1 for what predictions of its cache rest on.",
        labels=("replica", "mode"),
    )
    for replica, cache in caches:
        for mode in TrustMode:
            family.add_metric((replica, mode.value), float(mode.value == cache.trust))
    return family


def _agreement(caches: Sequence[tuple[str, CacheStatus]]) -> Metric:
    family = GaugeMetricFamily(
        "headstart_replica_tokens_agree",
        "1 if our tokens are the engine's; absent without a tokenizer of ours.",
        labels=("replica",),
    )
    for replica, cache in caches:
        if cache.tokens_agree is not None:
            family.add_metric((replica,), float(cache.tokens_agree))
    return family


def _shadows(shadows: Sequence[ShadowStatus]) -> Iterator[Metric]:
    for field, name, documentation in _SHADOWS:
        family = CounterMetricFamily(f"headstart_shadow_{name}", documentation, labels=("policy",))
        for shadow in shadows:
            family.add_metric((shadow.policy,), getattr(shadow, field))
        yield family
