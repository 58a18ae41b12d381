"""`TenantLimiter`: which limit refuses, what is booked, and when the same request may pass."""

from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.accounting.tenant_counts import TenantCounts
from headstart.errors import ConcurrencyLimit, Overloaded, RequestRateLimit, TokenRateLimit
from headstart.gateway.limits import LimitUse, TenantLimiter, TokenEstimate

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"


def tenant(**limits):
    return Tenant("acme", limits=TenantLimits(**limits))


def test_a_tenant_without_limits_is_not_counted():
    """And costs a look-up."""
    free = Tenant("free")
    limiter = TenantLimiter([tenant(concurrent=1), free])
    assert [limiter.admit(free, CHAT, 10**6, 0.0) for _ in range(3)] == [None] * 3
    assert list(limiter.used()) == [LimitUse("acme", 0, 0, 0)]


def test_concurrent_requests():
    """One more only after one has ended; when that is nobody knows."""
    acme = tenant(concurrent=2)
    limiter = TenantLimiter([acme])
    first = limiter.admit(acme, TOKENIZE, 0, 0.0)
    limiter.admit(acme, TOKENIZE, 0, 0.0)
    with pytest.raises(ConcurrencyLimit, match="2 requests open and may have 2") as caught:
        limiter.admit(acme, TOKENIZE, 0, 100.0)
    assert (caught.value.code, caught.value.retry_after_s) == ("concurrent_limit", 1)
    first.end(None, was_sent=True)
    assert limiter.admit(acme, TOKENIZE, 0, 100.0)


def test_requests_per_minute():
    """The first of them must have expired; a refused one does not count."""
    acme = tenant(requests_per_minute=2)
    limiter = TenantLimiter([acme])
    for now in (10.5, 30.0):
        limiter.admit(acme, TOKENIZE, 0, now).end(None, was_sent=True)
    for _ in range(3):
        with pytest.raises(RequestRateLimit) as caught:
            limiter.admit(acme, TOKENIZE, 0, 40.0)
    assert caught.value.code == "requests_per_minute_limit"
    assert (caught.value.limit, caught.value.remaining, caught.value.unit) == (2, 0, "requests")
    assert caught.value.retry_after_s == 31
    with pytest.raises(RequestRateLimit):
        limiter.admit(acme, TOKENIZE, 0, 70.9)
    assert limiter.admit(acme, TOKENIZE, 0, 71.0)


def test_input_tokens_per_minute_are_booked_and_settled():
    """Four bytes a token, until the engine has said."""
    acme = tenant(input_tokens_per_minute=100)
    limiter = TenantLimiter([acme])
    first = limiter.admit(acme, CHAT, 240, 0.0)
    with pytest.raises(TokenRateLimit, match="has sent 60, and these are about 50") as caught:
        limiter.admit(acme, CHAT, 200, 0.0)
    assert caught.value.code == "input_tokens_per_minute_limit"
    assert (caught.value.limit, caught.value.remaining, caught.value.unit) == (100, 40, "tokens")
    assert caught.value.retry_after_s == 61
    first.end(30, was_sent=True)
    assert limiter.admit(acme, CHAT, 200, 0.0)
    (use,) = limiter.used()
    assert use.input_tokens == 30 + 49  # the estimate has learned from the first


def test_usage_above_the_estimate_counts_too():
    """It is spent, though it was not foreseen."""
    acme = tenant(input_tokens_per_minute=100)
    limiter = TenantLimiter([acme])
    limiter.admit(acme, CHAT, 40, 0.0).end(500, was_sent=True)
    with pytest.raises(TokenRateLimit) as caught:
        limiter.admit(acme, CHAT, 4, 30.0)
    assert (caught.value.remaining, caught.value.retry_after_s) == (0, 31)
    assert limiter.admit(acme, CHAT, 4, 61.0)


def test_unknown_usage_keeps_the_estimate():
    """Zero would be an invitation to send what engines do not report."""
    acme = tenant(input_tokens_per_minute=100)
    limiter = TenantLimiter([acme])
    limiter.admit(acme, CHAT, 400, 0.0).end(None, was_sent=True)
    assert next(limiter.used()).input_tokens == 100


def test_a_prompt_above_the_whole_limit_has_a_minute_of_its_own():
    """It was only estimated; with an image in it, by far too high."""
    acme = tenant(input_tokens_per_minute=100)
    limiter = TenantLimiter([acme])
    limiter.admit(acme, CHAT, 40, 0.0).end(10, was_sent=True)
    with pytest.raises(TokenRateLimit) as caught:
        limiter.admit(acme, CHAT, 10**6, 5.0)
    assert caught.value.retry_after_s == 56
    alone = limiter.admit(acme, CHAT, 10**6, 61.0)
    assert alone
    with pytest.raises(TokenRateLimit):
        limiter.admit(acme, CHAT, 4, 61.0)


def test_what_generates_nothing_needs_no_tokens():
    """It counts as a request."""
    acme = tenant(input_tokens_per_minute=1, requests_per_minute=2)
    limiter = TenantLimiter([acme])
    limiter.admit(acme, TOKENIZE, 4000, 0.0).end(999, was_sent=True)
    assert list(limiter.used()) == [LimitUse("acme", 0, 1, 0)]


def test_a_request_that_was_never_sent_counts_nowhere():
    """It was open while it waited, and that is over."""
    acme = tenant(concurrent=1, requests_per_minute=1, input_tokens_per_minute=100)
    limiter = TenantLimiter([acme])
    limiter.admit(acme, CHAT, 400, 0.0).end(None, was_sent=False)
    assert list(limiter.used()) == [LimitUse("acme", 0, 0, 0)]
    assert limiter.admit(acme, CHAT, 400, 0.0)


def test_of_several_limits_the_one_that_lasts_longest_is_named():
    """Or the client would come back to be refused again."""
    acme = tenant(concurrent=1, requests_per_minute=1, input_tokens_per_minute=100)
    limiter = TenantLimiter([acme])
    limiter.admit(acme, CHAT, 400, 10.0)
    with pytest.raises(RequestRateLimit) as caught:
        limiter.admit(acme, CHAT, 400, 20.0)
    assert caught.value.retry_after_s == 51


def test_workers_count_together():
    """Two with one limit are not two limits."""
    acme = tenant(concurrent=2, requests_per_minute=3)
    cells = memoryview(mmap(-1, TenantCounts.num_bytes(1, 2))).cast("q")
    one, other = (
        TenantLimiter([acme], TenantCounts([acme.limits], cells=cells, row=row, num_rows=2))
        for row in range(2)
    )
    first = one.admit(acme, TOKENIZE, 0, 0.0)
    other.admit(acme, TOKENIZE, 0, 0.0)
    for limiter in (one, other):
        with pytest.raises(ConcurrencyLimit):
            limiter.admit(acme, TOKENIZE, 0, 0.0)
    first.end(None, was_sent=True)
    other.admit(acme, TOKENIZE, 0, 10.0)
    for limiter in (one, other):
        with pytest.raises(RequestRateLimit):
            limiter.admit(acme, TOKENIZE, 0, 10.0)
    for limiter in (one, other):
        limiter.sweep(61.0)
    assert [next(each.used()).requests for each in (one, other)] == [0, 1]


def test_a_limit_that_another_worker_frees_meanwhile_is_no_crash():
    """Between the refusal and its explanation."""
    acme = tenant(concurrent=1)

    class Racing(TenantCounts):
        def try_begin(self, tenant, tokens, second):
            return False

    with pytest.raises(Overloaded, match="a moment ago"):
        TenantLimiter([acme], Racing([acme.limits])).admit(acme, TOKENIZE, 0, 0.0)


@given(st.floats(0.2, 500), st.lists(st.integers(5000, 100_000), min_size=40, max_size=40))
def test_the_estimate_finds_a_tenants_bytes_per_token(ratio, sizes):
    """Chinese text has two or three, a picture hundreds."""
    estimate = TokenEstimate()
    assert estimate.tokens(4000) == 1000
    for num_tokens in sizes * 10:
        estimate.learn(int(num_tokens * ratio) + 1, num_tokens)
    assert estimate.tokens(10**6) == pytest.approx(10**6 / ratio, rel=0.5)


def test_a_place_in_the_queue_is_no_limit():
    """A tenant that has nothing but a priority is not counted."""
    first = tenant(least_priority=-10)
    limiter = TenantLimiter([first])
    assert not limiter.has_limits
    assert limiter.admit(first, CHAT, 10**6, 0.0) is None
