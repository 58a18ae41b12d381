"""The text of `/metrics`: snapshots put into Prometheus' form.

Reads copies only, so that it can run on another thread than the one that counts.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headstart.accounting.metrics import LABELS, HistogramSnapshot, MetricsSnapshot, SeriesSnapshot
from headstart.accounting.recorder import RecorderStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The form that `render_metrics` writes."""

_TOKEN_FAMILIES = (
    ("input_tokens", "Prompt tokens, cached ones included."),
    ("cached_tokens", "Prompt tokens whose KV came from the engine's cache."),
    (
        "cache_reported_input_tokens",
        "Prompt tokens of requests whose engine reported cached tokens; "
        "the hit ratio is headstart_cached_tokens_total over this.",
    ),
    ("written_tokens", "Prompt tokens that were newly stored in the engine's cache."),
    ("output_tokens", "Generated tokens."),
)

_HISTOGRAM_FAMILIES = (
    ("ttft", "headstart_time_to_first_token_seconds", "Request accepted to first content token."),
    (
        "tpot",
        "headstart_time_per_output_token_seconds",
        "(Last - first token) / (output tokens - 1), per request.",
    ),
    (
        "e2e",
        "headstart_e2e_request_latency_seconds",
        "Request accepted to last byte of the answer.",
    ),
    (
        "queue",
        "headstart_queue_time_seconds",
        "Wait in the gateway for a replica, of those requests that had to wait.",
    ),
)

_SINK_FAMILIES = (
    ("queued", GaugeMetricFamily, "records_queued", "Records that wait to be kept."),
    ("written", CounterMetricFamily, "records_written", "Records kept."),
    ("dropped", CounterMetricFamily, "records_dropped", "Records given up."),
    ("write_failures", CounterMetricFamily, "record_write_failures", "Refused writes."),
)


def render_metrics(
    metrics: MetricsSnapshot,
    recorder: RecorderStatistics,
    more: Iterable[Metric] = (),
) -> bytes:
    """Write the exposition text.

    Args:
        metrics: the figures over requests.
        recorder: what became of the records.
        more: further families, e.g. of the replicas or the process.

    Cost: about 0.5 ms per series; not for the event loop.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*request_families(metrics), *recorder_families(recorder), *more]))
    return generate_latest(registry)


def request_families(metrics: MetricsSnapshot) -> Iterator[Metric]:
    """Build the families over requests."""
    requests = CounterMetricFamily(
        "headstart_requests", "Finished requests by HTTP status.", labels=(*LABELS, "status")
    )
    unknown = CounterMetricFamily(
        "headstart_usage_unknown",
        "Generations whose engine did not report input tokens.",
        labels=LABELS,
    )
    retries = CounterMetricFamily(
        "headstart_retries", "Attempts on another replica beyond the first.", labels=LABELS
    )
    refusals = CounterMetricFamily(
        "headstart_limit_refusals",
        "Requests answered 429 because of a tenant's limit or of the queue.",
        labels=(*LABELS, "code"),
    )
    for series in metrics.series:
        for code, count in series.refusals:
            refusals.add_metric((*series.labels, code), count)
        for status, count in series.requests:
            requests.add_metric((*series.labels, str(status)), count)
        unknown.add_metric(series.labels, series.usage_unknown)
        retries.add_metric(series.labels, series.retries)
    yield from (requests, unknown, retries, refusals)
    for field, documentation in _TOKEN_FAMILIES:
        yield _token_family(metrics.series, field, documentation)
    for field, name, documentation in _HISTOGRAM_FAMILIES:
        yield _histogram_family(metrics.series, field, name, documentation)
    folded = CounterMetricFamily(
        "headstart_label_values_folded",
        "Requests of which a label's value was over its bound and counted as `other`.",
        labels=("label",),
    )
    for label, count in metrics.folded:
        folded.add_metric((label,), count)
    yield folded
    size = GaugeMetricFamily(
        "headstart_metric_series", "Combinations of label values in the request metrics."
    )
    size.add_metric((), len(metrics.series))
    yield size


def recorder_families(recorder: RecorderStatistics) -> Iterator[Metric]:
    """Build the families over the recorder's sinks."""
    for field, family_class, name, documentation in _SINK_FAMILIES:
        family = family_class(f"headstart_{name}", documentation, labels=("sink",))
        for sink in recorder.sinks:
            family.add_metric((sink.name,), getattr(sink, field))
        yield family


def _token_family(
    series: Iterable[SeriesSnapshot], field: str, documentation: str
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"headstart_{field}", documentation, labels=LABELS)
    for one in series:
        value: int | None = getattr(one, field)
        # What no engine has reported is absent: a zero would say that nothing was cached.
        if value is not None:
            family.add_metric(one.labels, value)
    return family


def _histogram_family(
    series: Iterable[SeriesSnapshot], field: str, name: str, documentation: str
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, documentation, labels=LABELS)
    for one in series:
        histogram: HistogramSnapshot = getattr(one, field)
        if any(histogram.counts):
            family.add_metric(one.labels, _cumulative(histogram), histogram.sum_s)
    return family


def _cumulative(histogram: HistogramSnapshot) -> list[tuple[str, float]]:
    bounds = (*(str(bound) for bound in histogram.bounds_s), "+Inf")
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


class _Families(Collector):
    """Hands families that exist already to prometheus-client's registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
