"""Counters add up, unknown is absent, and label values are bounded whatever clients send."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headstart.accounting.metrics import (
    OTHER,
    TTFT_BUCKETS_S,
    MetricsConfig,
    RequestMetrics,
)
from headstart.accounting.record import RequestRecord
from headstart.wire.usage import Usage

ANSWERED = RequestRecord(
    request_id="r",
    time_s=0.0,
    path="/v1/chat/completions",
    model="m",
    tenant="acme",
    business_line="support",
    template="t@1",
    replica="a",
    status=200,
    usage=Usage(100, 64, None, 10),
    ttft_s=0.1,
    tpot_s=0.02,
    total_s=0.3,
    retries=1,
)


def observe(*records, config=None):
    metrics = RequestMetrics(config)
    for record in records:
        metrics.observe(record)
    metrics.check_integrity()
    return metrics.snapshot()


def test_figures_of_one_combination_add_up():
    """Counts by status, token sums and histograms of two requests."""
    (series,) = observe(ANSWERED, msgspec.structs.replace(ANSWERED, status=502)).series
    assert series.labels == ("m", "acme", "support", "t@1", "a")
    assert series.requests == ((200, 1), (502, 1))
    assert (series.input_tokens, series.cached_tokens, series.output_tokens) == (200, 128, 20)
    assert series.retries == 2
    assert series.ttft.sum_s == 0.2
    assert sum(series.ttft.counts) == 2


def test_what_no_engine_reported_is_absent_and_zero_is_zero():
    """Written tokens were never mentioned; cached ones were, and were none."""
    cold = msgspec.structs.replace(ANSWERED, usage=Usage(100, 0, None, None))
    (series,) = observe(cold).series
    assert series.cached_tokens == 0
    assert series.written_tokens is None
    assert series.output_tokens is None


def test_the_hit_ratio_has_a_denominator_without_the_unknown():
    """Requests whose engine did not report cached tokens would only dilute it."""
    unknown = msgspec.structs.replace(ANSWERED, usage=Usage(900, None, None, 10))
    (series,) = observe(ANSWERED, unknown).series
    assert series.input_tokens == 1000
    assert (series.cached_tokens, series.cache_reported_input_tokens) == (64, 100)


def test_an_answer_without_usage_is_counted_as_unknown():
    """Only where usage should be: an error or `/tokenize` has none to report."""
    silent = msgspec.structs.replace(ANSWERED, usage=Usage())
    failed = msgspec.structs.replace(silent, status=500)
    tokenize = msgspec.structs.replace(silent, path="/tokenize")
    (series,) = observe(ANSWERED, silent, failed, tokenize).series
    assert series.usage_unknown == 1


def test_a_time_that_does_not_exist_is_not_observed():
    """A request without a first token has no TTFT, not one of zero."""
    (series,) = observe(msgspec.structs.replace(ANSWERED, ttft_s=None, tpot_s=None)).series
    assert sum(series.ttft.counts) == sum(series.tpot.counts) == 0
    assert sum(series.e2e.counts) == 1


def test_only_those_that_waited_are_in_the_queue_histogram():
    """Else the zeros of all others would hide how long a wait is."""
    (series,) = observe(ANSWERED, msgspec.structs.replace(ANSWERED, queue_s=0.1)).series
    assert (sum(series.queue.counts), series.queue.sum_s) == (1, 0.1)


def test_refusals_are_counted_by_limit_and_an_engines_429_is_not_ours():
    """The engine's own is counted by its status like all its answers."""
    refused = msgspec.structs.replace(
        ANSWERED, status=429, replica="", error_code="queue_full", usage=Usage()
    )
    late = msgspec.structs.replace(refused, error_code="queue_timeout")
    engines = msgspec.structs.replace(ANSWERED, status=429, error_code="engine_429")
    series = {each.labels[-1]: each for each in observe(refused, late, refused, engines).series}
    assert series[""].refusals == (("queue_full", 2), ("queue_timeout", 1))
    assert series["a"].refusals == ()


def test_a_bucket_includes_its_upper_bound():
    """As Prometheus' `le` says."""
    (series,) = observe(msgspec.structs.replace(ANSWERED, ttft_s=TTFT_BUCKETS_S[3])).series
    assert series.ttft.counts[3] == 1


def test_a_time_beyond_all_bounds_is_in_the_last_bucket():
    """Nothing is lost at the upper end."""
    (series,) = observe(msgspec.structs.replace(ANSWERED, ttft_s=1e6)).series
    assert series.ttft.counts[-1] == 1


def test_values_over_the_bound_are_folded_and_counted():
    """The third model is `other`; the first two go on being counted by name."""
    records = [msgspec.structs.replace(ANSWERED, model=model) for model in ("a", "b", "c", "a")]
    snapshot = observe(*records, config=MetricsConfig(max_label_values=2))
    counts = {series.labels[0]: series.requests[0][1] for series in snapshot.series}
    assert counts == {"a": 2, "b": 1, OTHER: 1}
    assert dict(snapshot.folded)["model"] == 1


def test_names_that_no_replica_answered_to_take_no_room():
    """A client that invents models cannot push real ones into `other`."""
    invented = [
        msgspec.structs.replace(ANSWERED, model=f"x{i}", replica="", status=404) for i in range(100)
    ]
    snapshot = observe(*invented, ANSWERED, config=MetricsConfig(max_label_values=1))
    assert {series.labels[0] for series in snapshot.series} == {OTHER, "m"}


def test_names_that_an_engine_refused_take_no_room():
    """A replica whose models are unknown is sent every name, and answers 404 to the invented."""
    invented = [msgspec.structs.replace(ANSWERED, model=f"x{i}", status=404) for i in range(100)]
    snapshot = observe(*invented, ANSWERED, config=MetricsConfig(max_label_values=1))
    assert {series.labels[0] for series in snapshot.series} == {OTHER, "m"}


def test_names_of_the_configuration_are_known_before_anything_was_answered():
    """Who got the errors of a gateway without a replica must be visible."""
    lost = msgspec.structs.replace(ANSWERED, replica="", status=503)
    (series,) = observe(lost).series
    assert series.labels == (OTHER, "acme", "support", "t@1", "")


def test_a_known_model_keeps_its_name_when_no_replica_answers():
    """The errors of a model must be visible under its name."""
    lost = msgspec.structs.replace(ANSWERED, replica="", status=503)
    snapshot = observe(ANSWERED, lost)
    assert [series.labels[0] for series in snapshot.series] == ["m", "m"]


def test_a_value_nobody_can_read_is_folded():
    """Line breaks and novels are no label values."""
    odd = [msgspec.structs.replace(ANSWERED, model=model) for model in ("a\nb", "x" * 129)]
    assert {series.labels[0] for series in observe(*odd).series} == {OTHER}


RECORDS = st.builds(
    msgspec.structs.replace,
    st.just(ANSWERED),
    model=st.text(max_size=2),
    tenant=st.sampled_from("abcdef"),
    business_line=st.sampled_from(["", "x", "y"]),
    template=st.one_of(st.none(), st.sampled_from(["t@1", "t@2", "u@1", "u@2"])),
    replica=st.sampled_from(["", "r1", "r2", "r3"]),
    status=st.sampled_from([200, 404, 503]),
    usage=st.builds(
        Usage,
        input_tokens=st.one_of(st.none(), st.integers(10, 99)),
        cached_tokens=st.one_of(st.none(), st.integers(0, 10)),
    ),
)


@given(
    st.lists(RECORDS, max_size=60),
    st.builds(MetricsConfig, max_label_values=st.integers(1, 4), max_series=st.integers(1, 10)),
)
def test_whatever_comes_the_bounds_hold_and_no_request_is_lost(records, config):
    """Against a naive count: folding moves requests between series, and changes no sum."""
    snapshot = observe(*records, config=config)
    assert len(snapshot.series) <= config.max_series + 1
    by_status = Counter()
    for series in snapshot.series:
        by_status.update(dict(series.requests))
    assert by_status == Counter(record.status for record in records)
    known = [record.usage for record in records if record.usage.input_tokens is not None]
    assert sum(series.input_tokens or 0 for series in snapshot.series) == sum(
        usage.input_tokens for usage in known
    )
    assert sum(series.cached_tokens or 0 for series in snapshot.series) == sum(
        usage.cached_tokens or 0 for usage in known
    )
