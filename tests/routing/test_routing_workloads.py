"""Five workloads in virtual time: near the ideal hit ratio, balanced, and quick, all at once."""

from functools import cache

import pytest

from benchmarks.routing.simulated import EngineModel, Outcome, prepared, simulate
from benchmarks.routing.workloads import Workload, ideal_hit_ratio, workloads
from headstart.prefix.config import PrefixConfig
from headstart.prefix.view import PrefixView
from headstart.routing.build import build_router
from headstart.routing.config import PolicyName, RoutingConfig

NAMES = ("pairs", "sessions", "hot_prefix", "tenants", "capacity")
SEEDS = (1, 2)
MODEL = EngineModel()


@cache
def workload(name: str, seed: int) -> Workload:
    return next(each for each in workloads(seed) if each.name == name)


def run(name: str, policy: PolicyName, seed: int = 1, model: EngineModel = MODEL) -> Outcome:
    return simulate(
        prepared(workload(name, seed)),
        workload(name, seed).num_clients,
        lambda _: build_router(RoutingConfig(policy=policy), PrefixView(PrefixConfig())),
        model,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_policy_is_near_the_ideal_and_balanced(name, seed):
    """Within three points of a cache that never forgets, the busiest replica at most half above."""
    outcome = run(name, "expected_ttft", seed)
    assert outcome.hit_ratio >= ideal_hit_ratio(workload(name, seed)) - 0.03
    assert outcome.busiest_share <= 1.5


@pytest.mark.parametrize("name", NAMES)
def test_the_default_policy_is_as_quick_as_the_best_other(name):
    """Within a twentieth of the best median of what public routers do; a tenth of all others'."""
    median = run(name, "expected_ttft").p50_s
    public: tuple[PolicyName, ...] = ("round_robin", "prefix_hash", "sglang_cache_aware")
    assert median <= 1.05 * min(run(name, policy).p50_s for policy in public)
    others: tuple[PolicyName, ...] = ("least_loaded", "lmetric")
    assert median <= 1.1 * min(run(name, policy).p50_s for policy in others)


@pytest.mark.parametrize("name", ["hot_prefix", "tenants"])
def test_a_replica_four_times_as_slow_is_spared(name):
    """It gets less than half of its share, and the tail is half of that of taking turns."""
    model = EngineModel(slowness=(1.0, 4.0, 1.0, 1.0))
    outcome = run(name, "expected_ttft", model=model)
    assert outcome.num_requests[1] < 0.5 * sum(outcome.num_requests) / 4
    assert outcome.p99_s < 0.5 * run(name, "round_robin", model=model).p99_s
