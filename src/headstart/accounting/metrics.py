"""Counters and histograms over finished requests: what `/metrics` shows.

They are plain integers in plain objects, because prometheus-client's labelled metrics cost 12 µs
a request where these cost 2; `accounting.exposition` puts them into Prometheus' form.

Every label has a bound. Clients name models; without a bound a client that invents names would
fill the memory of the gateway and of Prometheus. What is over the bound is counted under the value
`other`. All other labels have names from the configuration or from template files.
"""

from bisect import bisect_left
from dataclasses import dataclass

from headstart.accounting.record import RequestRecord

LABELS = ("model", "tenant", "business_line", "template", "replica")
"""The labels of every family over requests, in the order of `LabelValues`."""

LabelValues = tuple[str, str, str, str, str]

_MODEL = LABELS.index("model")

OTHER = "other"
"""The value that stands for all that are over the bound."""

_MAX_VALUE_LENGTH = 128
"""A longer label value is counted as `other`: nobody reads it, and it would be sent forever."""

USAGE_PATHS = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
)
"""Where an answer should come with usage; `/tokenize` has none to report."""

TTFT_BUCKETS_S = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""Fine below 100 ms, where cached prefixes are; vLLM's range above."""

TPOT_BUCKETS_S = (
    *(0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)

E2E_BUCKETS_S = (
    *(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0),
    *(15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0),
)


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Bounds of the request metrics.

    Attributes:
        max_label_values: >= 1; values of one label before further ones count as `other`.
        max_series: >= 1; combinations of values before further ones count as all `other`. Each
            costs about 2 KB here and 65 lines in `/metrics`.
    """

    max_label_values: int = 64
    max_series: int = 1000


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """One histogram at one moment.

    Attributes:
        bounds_s: upper bounds of all buckets but the last, which has none.
        counts: observations per bucket, not cumulative; one more than `bounds_s`.
        sum_s: sum of all observations.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class SeriesSnapshot:
    """All figures of one combination of label values at one moment.

    Attributes:
        labels: values of `LABELS`.
        requests: (HTTP status, requests) in order.
        input_tokens: Σ over requests whose engine reported it; None if none did. Likewise
            `cached_tokens`, `written_tokens` and `output_tokens`.
        cache_reported_input_tokens: Σ input tokens of those requests whose engine reported
            cached tokens: the denominator of the hit ratio.
        usage_unknown: generations answered with 2xx whose engine reported no input tokens.
        retries: attempts on another replica.
        refusals: (code, requests that a limit or the queue refused) in order.
        queue: waiting times of those requests that waited in the gateway.
    """

    labels: LabelValues
    requests: tuple[tuple[int, int], ...]
    input_tokens: int | None
    cached_tokens: int | None
    cache_reported_input_tokens: int | None
    written_tokens: int | None
    output_tokens: int | None
    usage_unknown: int
    retries: int
    ttft: HistogramSnapshot
    tpot: HistogramSnapshot
    e2e: HistogramSnapshot
    refusals: tuple[tuple[str, int], ...]
    queue: HistogramSnapshot


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything at one moment.

    Attributes:
        series: one per combination of label values.
        folded: (label, requests whose value of it was counted as `other`).
    """

    series: tuple[SeriesSnapshot, ...]
    folded: tuple[tuple[str, int], ...]


class RequestMetrics:
    """Counts requests by model, tenant, business line, template and replica."""

    def __init__(self, config: MetricsConfig | None = None) -> None:
        self._config = config or MetricsConfig()
        self._series: dict[LabelValues, _Series] = {}
        self._values: tuple[set[str], ...] = tuple({""} for _ in LABELS)
        self._folded = dict.fromkeys(LABELS, 0)

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request.

        Cost: about 2 µs for a combination seen before; a folded one takes about twice that.
        """
        labels = (
            record.model,
            record.tenant,
            record.business_line,
            record.template or "",
            record.replica,
        )
        series = self._series.get(labels)
        if series is None:
            series = self._admit(labels, is_served=_is_served(record))
        series.observe(record)

    def snapshot(self) -> MetricsSnapshot:
        """Copy all figures; call it where `observe` is called, read the copy anywhere."""
        return MetricsSnapshot(
            series=tuple(
                series.snapshot(labels) for labels, series in sorted(self._series.items())
            ),
            folded=tuple(self._folded.items()),
        )

    def changes(self, seen: dict[LabelValues, int]) -> MetricsSnapshot:
        """Copy the figures of the combinations that have counted a request since the last call.

        Args:
            seen: empty at first; what was copied is noted there.

        Mutates: seen.
        """
        changed = []
        for labels, series in self._series.items():
            num_requests = series.num_requests
            if seen.get(labels) != num_requests:
                seen[labels] = num_requests
                changed.append(series.snapshot(labels))
        return MetricsSnapshot(tuple(changed), tuple(self._folded.items()))

    def check_integrity(self) -> None:
        """Assert the bounds: values per label, and series over all."""
        assert len(self._series) <= self._config.max_series + 1
        for position, values in enumerate(self._values):
            assert len(values) <= self._config.max_label_values + 1  # "" is always known
            for labels in self._series:
                assert labels[position] in values or labels[position] == OTHER

    def _admit(self, labels: LabelValues, *, is_served: bool) -> "_Series":
        model, tenant, business_line, template, replica = (
            self._fold(position, value, is_real=position != _MODEL or is_served)
            for position, value in enumerate(labels)
        )
        folded = (model, tenant, business_line, template, replica)
        series = self._series.get(folded)
        if series is None:
            if len(self._series) >= self._config.max_series:
                folded = (OTHER, OTHER, OTHER, OTHER, OTHER)
                self._count_folded(LABELS)
                if folded in self._series:
                    return self._series[folded]
            series = self._series[folded] = _Series()
        return series

    def _fold(self, position: int, value: str, *, is_real: bool) -> str:
        values = self._values[position]
        if value in values:
            return value
        # What may be a client's invention must not use up the room of names that exist.
        if (
            is_real
            and len(value) <= _MAX_VALUE_LENGTH
            and value.isprintable()
            and len(values) <= self._config.max_label_values
        ):
            values.add(value)
            return value
        self._count_folded((LABELS[position],))
        return OTHER

    def _count_folded(self, labels: tuple[str, ...]) -> None:
        for label in labels:
            self._folded[label] += 1


def _is_served(record: RequestRecord) -> bool:
    """Tell whether the model is known to exist: an engine answers 400 or 404 to one that does not.

    A replica whose models are unknown is sent every name that clients invent.
    """
    return record.replica != "" and not 400 <= record.status < 500


class _Histogram:
    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        # bisect_left: a bucket's upper bound is inside it, as Prometheus wants.
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self.bounds_s, tuple(self.counts), self.sum_s)


class _Series:
    """The counters of one combination; `None` until an engine reported such a figure."""

    __slots__ = (
        "cache_reported_input_tokens",
        "cached_tokens",
        "e2e",
        "input_tokens",
        "output_tokens",
        "queue",
        "refusals",
        "requests",
        "retries",
        "tpot",
        "ttft",
        "usage_unknown",
        "written_tokens",
    )

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.cache_reported_input_tokens: int | None = None
        self.written_tokens: int | None = None
        self.output_tokens: int | None = None
        self.usage_unknown = 0
        self.retries = 0
        self.ttft = _Histogram(TTFT_BUCKETS_S)
        self.tpot = _Histogram(TPOT_BUCKETS_S)
        self.e2e = _Histogram(E2E_BUCKETS_S)
        self.refusals: dict[str, int] = {}
        self.queue = _Histogram(TTFT_BUCKETS_S)

    @property
    def num_requests(self) -> int:
        return sum(self.requests.values())

    def observe(self, record: RequestRecord) -> None:
        self.requests[record.status] = self.requests.get(record.status, 0) + 1
        usage = record.usage
        if usage.input_tokens is not None:
            self.input_tokens = (self.input_tokens or 0) + usage.input_tokens
            if usage.cached_tokens is not None:
                self.cached_tokens = (self.cached_tokens or 0) + usage.cached_tokens
                self.cache_reported_input_tokens = (
                    self.cache_reported_input_tokens or 0
                ) + usage.input_tokens
        elif 200 <= record.status < 300 and record.path in USAGE_PATHS:
            self.usage_unknown += 1
        if usage.written_tokens is not None:
            self.written_tokens = (self.written_tokens or 0) + usage.written_tokens
        if usage.output_tokens is not None:
            self.output_tokens = (self.output_tokens or 0) + usage.output_tokens
        self.retries += record.retries
        self.e2e.observe(record.total_s)
        if record.ttft_s is not None:
            self.ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            self.tpot.observe(record.tpot_s)
        if record.queue_s:
            self.queue.observe(record.queue_s)
        if record.status == 429 and not record.replica and record.error_code is not None:
            self.refusals[record.error_code] = self.refusals.get(record.error_code, 0) + 1

    def snapshot(self, labels: LabelValues) -> SeriesSnapshot:
        return SeriesSnapshot(
            labels=labels,
            requests=tuple(sorted(self.requests.items())),
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            cache_reported_input_tokens=self.cache_reported_input_tokens,
            written_tokens=self.written_tokens,
            output_tokens=self.output_tokens,
            usage_unknown=self.usage_unknown,
            retries=self.retries,
            ttft=self.ttft.snapshot(),
            tpot=self.tpot.snapshot(),
            e2e=self.e2e.snapshot(),
            refusals=tuple(sorted(self.refusals.items())),
            queue=self.queue.snapshot(),
        )
