"""A cost model is found again from what it made, and says how well it predicts."""

from random import Random

import pytest

from headstart.accounting.record import RequestRecord
from headstart.errors import ConfigError
from headstart.simulator.fit import Lone, fit, lone_requests
from headstart.wire.usage import Usage


def drawn(num: int, noise: float) -> list[Lone]:
    rng, found = Random("fit"), []
    for _ in range(num):
        uncached, cached = rng.randrange(1, 4000), rng.choice((0, 0, 500, 3000))
        seconds = 0.02 + 4e-4 * uncached + 3e-8 * uncached * (cached + uncached / 2)
        found.append(Lone(uncached, cached, seconds * (1 + rng.gauss(0, noise)), 0.03))
    return found


def test_coefficients_are_found_again():
    """Without noise exactly, with 5 % of it nearly."""
    exact = fit(drawn(60, 0.0), name="x", source="test")
    assert exact.cost.base_s == pytest.approx(0.02, rel=1e-6)
    assert exact.cost.token_s == pytest.approx(4e-4, rel=1e-6)
    assert exact.cost.pair_s == pytest.approx(3e-8, rel=1e-6)
    assert exact.cost.linear_s(1) == 0.03
    assert exact.median_error_ratio < 1e-9
    noisy = fit(drawn(200, 0.05), name="x", source="test")
    assert noisy.cost.token_s == pytest.approx(4e-4, rel=0.1)
    assert 0.01 < noisy.median_error_ratio < 0.06


def test_nothing_takes_less_than_no_time():
    """Coefficients are never negative, whatever the noise."""
    rng = Random(1)
    lone = [Lone(rng.randrange(1, 3000), 0, 0.5 + 0.001 * rng.random(), None) for _ in range(40)]
    cost = fit(lone, name="x", source="test").cost
    assert min(cost.base_s, cost.token_s, cost.pair_s) >= 0


def test_too_few_records_are_refused():
    """The error says how many there are and what to do."""
    with pytest.raises(ConfigError, match="only 3 streamed requests"):
        fit(drawn(3, 0.0), name="x", source="test")


def record(at, *, replica="r", total_s=1.0, ttft_s=0.5, cached=100, stream=True, queue_s=0.0):
    return RequestRecord(
        request_id=str(at),
        time_s=at,
        path="/v1/chat/completions",
        replica=replica,
        is_stream=stream,
        status=200,
        usage=Usage(input_tokens=600, cached_tokens=cached, output_tokens=10),
        ttft_s=ttft_s,
        tpot_s=0.05,
        total_s=total_s,
        queue_s=queue_s,
    )


def test_only_those_that_were_alone_count():
    """Who came into another's time, whose time another came into, and who was not streamed."""
    found = lone_requests(
        [
            record(0.0),
            record(2.0),  # another comes while it decodes
            record(2.7),  # comes into the other's time
            record(2.8, replica="other", queue_s=0.1),
            record(10.0, stream=False),
            record(20.0),
            record(20.3),
        ]
    )
    assert [(one.uncached_tokens, one.tpot_s) for one in found] == [
        (500, 0.05),
        (500, None),
        (500, 0.05),
    ]
    assert found[2].ttft_s == pytest.approx(0.4)
