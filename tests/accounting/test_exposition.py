"""`/metrics` is valid Prometheus text that says what the counters say."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from test_metrics import ANSWERED

from headstart.accounting.exposition import render_metrics
from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.recorder import RecorderStatistics, SinkStatistics
from headstart.wire.usage import Usage

LABELS = {
    "model": "m",
    "tenant": "acme",
    "business_line": "support",
    "template": "t@1",
    "replica": "a",
}
RECORDER = RecorderStatistics(3, (SinkStatistics("store", 1, 2, 0, 4),))


def samples(*records):
    metrics = RequestMetrics()
    for record in records:
        metrics.observe(record)
    text = render_metrics(metrics.snapshot(), RECORDER).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))]


def test_counters_carry_all_labels():
    """The five labels, and the status on the request counter."""
    found = samples(ANSWERED)
    assert value(found, "headstart_requests_total", status="200", **LABELS) == 1
    assert value(found, "headstart_input_tokens_total", **LABELS) == 100
    assert value(found, "headstart_cached_tokens_total", **LABELS) == 64
    assert value(found, "headstart_cache_reported_input_tokens_total", **LABELS) == 100
    assert value(found, "headstart_output_tokens_total", **LABELS) == 10
    assert value(found, "headstart_retries_total", **LABELS) == 1


def test_refusals_carry_their_code():
    """Which limit it was; the model is one that a client may have invented."""
    refused = msgspec.structs.replace(
        ANSWERED, status=429, replica="", error_code="concurrent_limit", usage=Usage()
    )
    labels = {**LABELS, "replica": "", "model": "other", "code": "concurrent_limit"}
    assert value(samples(refused), "headstart_limit_refusals_total", **labels) == 1


def test_unknown_cached_tokens_are_absent():
    """`rate()` over nothing is nothing; over a zero it would be a miss."""
    found = samples(msgspec.structs.replace(ANSWERED, usage=Usage()))
    names = {name for name, _labels in found}
    assert "headstart_cached_tokens_total" not in names
    assert value(found, "headstart_usage_unknown_total", **LABELS) == 1


def test_histograms_are_cumulative_and_end_in_infinity():
    """0.1 s is in the bucket of 0.1 and all above, and not in the one below."""
    found = samples(ANSWERED)
    name = "headstart_time_to_first_token_seconds"
    assert value(found, f"{name}_bucket", le="0.08", **LABELS) == 0
    assert value(found, f"{name}_bucket", le="0.1", **LABELS) == 1
    assert value(found, f"{name}_bucket", le="+Inf", **LABELS) == 1
    assert value(found, f"{name}_count", **LABELS) == 1
    assert value(found, f"{name}_sum", **LABELS) == 0.1


def test_a_histogram_without_observations_is_absent():
    """Sixty lines of zeros per series help nobody."""
    found = samples(msgspec.structs.replace(ANSWERED, ttft_s=None))
    assert not [name for name, _labels in found if name.startswith("headstart_time_to_first")]


def test_label_values_are_escaped():
    """A model called `a"b\\c` is text, not syntax."""
    found = samples(msgspec.structs.replace(ANSWERED, model='a"b\\c'))
    labels = {**LABELS, "model": 'a"b\\c'}
    assert value(found, "headstart_input_tokens_total", **labels) == 100


def test_the_recorder_is_visible():
    """Lost and waiting records can be alerted on."""
    found = samples()
    assert value(found, "headstart_records_queued", sink="store") == 1
    assert value(found, "headstart_records_written_total", sink="store") == 2
    assert value(found, "headstart_records_dropped_total", sink="store") == 0
    assert value(found, "headstart_record_write_failures_total", sink="store") == 4


def test_folded_labels_are_visible():
    """Somebody must see that `other` has grown."""
    found = samples(msgspec.structs.replace(ANSWERED, model="x" * 200))
    assert value(found, "headstart_label_values_folded_total", label="model") == 1
    assert value(found, "headstart_metric_series") == 1
