"""The embedded engine's `/metrics`, under vLLM's names and buckets for what it has.

Counters and gauges are read from the engine's own snapshot when somebody asks; histograms are fed
once per finished request, on the engine's thread. What vLLM does not have a name for starts with
`headstart_engine_`.

Source: a `/metrics` page of vLLM 0.32.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headstart.engines.embedded.engine import EmbeddedEngine
from headstart.engines.embedded.kv_publisher import KvEventPublisher
from headstart.engines.embedded.statistics import EngineStatistics, FinishedRequest

_LABELS = ("model_name", "engine")
_ENGINE = "0"
"""vLLM's number of the engine within one server; this server has one."""

_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_TIME_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_REQUEST_TIME_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN_COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

_HISTOGRAMS = (
    ("time_to_first_token_seconds", "Time to first token.", _TTFT_BUCKETS),
    ("inter_token_latency_seconds", "Gap between two tokens.", _TOKEN_TIME_BUCKETS),
    (
        "request_time_per_output_token_seconds",
        "Mean gap between the tokens of a request.",
        _TOKEN_TIME_BUCKETS,
    ),
    ("e2e_request_latency_seconds", "Arrival to end.", _REQUEST_TIME_BUCKETS),
    ("request_queue_time_seconds", "Arrival to admission.", _REQUEST_TIME_BUCKETS),
    ("request_inference_time_seconds", "Admission to last token.", _REQUEST_TIME_BUCKETS),
    ("request_prefill_time_seconds", "Admission to first token.", _REQUEST_TIME_BUCKETS),
    ("request_decode_time_seconds", "First to last token.", _REQUEST_TIME_BUCKETS),
    ("request_prompt_tokens", "Prompt tokens of a request.", _TOKEN_COUNT_BUCKETS),
    ("request_generation_tokens", "Tokens generated for a request.", _TOKEN_COUNT_BUCKETS),
    ("request_params_max_tokens", "The request's own limit.", _TOKEN_COUNT_BUCKETS),
    (
        "request_prefill_kv_computed_tokens",
        "Prompt tokens computed, cached ones excluded.",
        _TOKEN_COUNT_BUCKETS,
    ),
)
_FINISHED_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What `vllm:cache_config_info` says of the pool besides its size."""

    enable_prefix_caching: bool
    dtype: str


class EngineMetrics:
    """One server's metrics in a registry of their own; does not decide what the engine counts.

    Args:
        engine: whose snapshot is read.
        model_name: value of the `model_name` label.
        cache: how the pool is used.
        publisher: whose dropped batches are counted, if events are published.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        model_name: str,
        cache: CacheFacts,
        publisher: KvEventPublisher | None = None,
    ) -> None:
        self._labels = (model_name, _ENGINE)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_SnapshotCollector(engine, self._labels, cache, publisher))
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry
            ).labels(*self._labels)
            for name, text, buckets in _HISTOGRAMS
        }
        finished = Counter(
            "vllm:request_success",
            "Finished requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._finished = {
            reason: finished.labels(*self._labels, reason) for reason in _FINISHED_REASONS
        }

    def observe(self, request: FinishedRequest) -> None:
        """Count one finished request; may be called from any thread."""
        reason = "error" if request.error is not None else request.finish_reason
        self._finished[reason].inc()
        for name, value in _observations(request):
            self._histograms[name].observe(value)
        gaps = self._histograms["inter_token_latency_seconds"]
        for gap_s in request.inter_token_s:
            gaps.observe(gap_s)

    def render(self) -> bytes:
        """Return the page in Prometheus' text form."""
        return generate_latest(self._registry)


def _observations(request: FinishedRequest) -> Iterator[tuple[str, float]]:
    yield "request_prompt_tokens", request.num_prompt_tokens
    yield "request_generation_tokens", request.num_output_tokens
    yield "request_params_max_tokens", request.max_tokens
    yield "e2e_request_latency_seconds", request.e2e_s
    if request.queue_s is not None:
        yield "request_queue_time_seconds", request.queue_s
    if request.ttft_s is not None:
        yield "time_to_first_token_seconds", request.ttft_s
        computed = request.num_prompt_tokens - request.cached_tokens
        yield "request_prefill_kv_computed_tokens", computed
    if request.prefill_s is not None and request.decode_s is not None:
        yield "request_prefill_time_seconds", request.prefill_s
        yield "request_decode_time_seconds", request.decode_s
        yield "request_inference_time_seconds", request.prefill_s + request.decode_s
        if request.num_output_tokens > 1:
            mean_s = request.decode_s / (request.num_output_tokens - 1)
            yield "request_time_per_output_token_seconds", mean_s


class _SnapshotCollector(Collector):
    """Turn the engine's snapshot into metric families each time the page is asked for."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        labels: tuple[str, str],
        cache: CacheFacts,
        publisher: KvEventPublisher | None,
    ) -> None:
        self._engine = engine
        self._labels = labels
        self._cache = cache
        self._publisher = publisher

    def collect(self) -> Iterable[Metric]:
        """Yield one family per figure."""
        now = self._engine.statistics()
        for name, text, value in _gauges(now):
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, text, total in _counters(now, self._publisher):
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            counter.add_metric(self._labels, total)
            yield counter
        yield self._prompt_tokens_by_source(now)
        yield self._cache_info(now)

    def _prompt_tokens_by_source(self, now: EngineStatistics) -> Metric:
        family = CounterMetricFamily(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens computed here, and found in the cache.",
            labels=(*_LABELS, "source"),
        )
        computed = now.prompt_tokens - now.cached_prompt_tokens
        family.add_metric((*self._labels, "local_compute"), computed)
        family.add_metric((*self._labels, "local_cache_hit"), now.cached_prompt_tokens)
        return family

    def _cache_info(self, now: EngineStatistics) -> Metric:
        facts = {
            "block_size": str(now.block_size),
            "cache_dtype": self._cache.dtype,
            "enable_prefix_caching": str(self._cache.enable_prefix_caching),
            "engine": _ENGINE,
            "kv_cache_size_tokens": str(now.num_blocks * now.block_size),
            "num_gpu_blocks": str(now.num_blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Shape of the KV cache.", labels=tuple(facts)
        )
        family.add_metric(tuple(facts.values()), 1)
        return family


def _gauges(now: EngineStatistics) -> Iterator[tuple[str, str, float]]:
    yield "vllm:num_requests_running", "Requests that hold KV blocks.", now.num_running
    yield "vllm:num_requests_waiting", "Requests that wait for KV blocks.", now.num_waiting
    yield (
        "vllm:kv_cache_usage_perc",
        "KV blocks held by running requests; 1 means all.",
        now.kv_usage_ratio,
    )
    yield (
        "headstart_engine_cached_blocks",
        "KV blocks whose contents can be reused.",
        now.num_cached_blocks,
    )


def _counters(
    now: EngineStatistics, publisher: KvEventPublisher | None
) -> Iterator[tuple[str, str, float]]:
    yield (
        "vllm:prefix_cache_queries",
        "Prompt tokens that were looked up.",
        now.prefix_cache_queries_tokens,
    )
    yield (
        "vllm:prefix_cache_hits",
        "Prompt tokens that were found.",
        now.prefix_cache_hits_tokens,
    )
    yield "vllm:prompt_tokens", "Prompt tokens processed, cached included.", now.prompt_tokens
    yield (
        "vllm:prompt_tokens_cached",
        "Prompt tokens served from the cache.",
        now.cached_prompt_tokens,
    )
    yield "vllm:generation_tokens", "Tokens generated.", now.generation_tokens
    yield "vllm:num_preemptions", "Requests that lost their blocks.", now.preemptions
    yield (
        "headstart_engine_prefilled_tokens",
        "Tokens computed before sampling, recomputation included.",
        now.prefilled_tokens,
    )
    yield (
        "headstart_engine_evicted_blocks",
        "Cached blocks that lost their contents to make room.",
        now.evicted_blocks,
    )
    if publisher is not None:
        yield (
            "headstart_engine_kv_event_batches_dropped",
            "Event batches that found the publisher's queue full.",
            publisher.num_dropped,
        )
