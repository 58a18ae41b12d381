"""Policies from their configuration."""

from collections.abc import Callable
from random import Random
from typing import Final

from headstart.routing.config import PolicyName, RoutingConfig
from headstart.routing.dynamo_cost import DynamoCost
from headstart.routing.expected_ttft import ExpectedTtft
from headstart.routing.gorgo import Gorgo
from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.llm_d_weighted import LlmDWeighted
from headstart.routing.lmetric import LMetric
from headstart.routing.mooncake_conductor import MooncakeConductor
from headstart.routing.policy import Policy
from headstart.routing.power_of_two import PowerOfTwo
from headstart.routing.preble_e2 import PrebleE2
from headstart.routing.prefix_hash import PrefixHash
from headstart.routing.production_stack_prefixaware import ProductionStackPrefixaware
from headstart.routing.random_choice import RandomChoice
from headstart.routing.round_robin import RoundRobin
from headstart.routing.router import PrefixKnowledge, Router
from headstart.routing.session_affinity import SessionAffinity
from headstart.routing.sglang_cache_aware import SglangCacheAware
from headstart.routing.shadow import Shadow

_MAKERS: Final[dict[PolicyName, Callable[[RoutingConfig, Random], Policy]]] = {
    "expected_ttft": lambda config, _: ExpectedTtft(config.expected_ttft, config.prefix_hash),
    "prefix_hash": lambda config, _: PrefixHash(config.prefix_hash),
    "session_affinity": lambda config, _: SessionAffinity(config.prefix_hash),
    "least_loaded": lambda *_: LeastLoaded(),
    "round_robin": lambda *_: RoundRobin(),
    "random": lambda _, rng: RandomChoice(rng),
    "power_of_two": lambda _, rng: PowerOfTwo(rng),
    "lmetric": lambda config, _: LMetric(config.lmetric),
    "sglang_cache_aware": lambda config, _: SglangCacheAware(config.sglang_cache_aware),
    "production_stack_prefixaware": lambda _, rng: ProductionStackPrefixaware(rng),
    "llm_d_weighted": lambda config, rng: LlmDWeighted(config.llm_d_weighted, rng),
    "dynamo_cost": lambda config, rng: DynamoCost(config.dynamo_cost, rng),
    "preble_e2": lambda config, _: PrebleE2(config.preble_e2),
    "gorgo": lambda config, _: Gorgo(config.gorgo),
    "mooncake_conductor": lambda config, _: MooncakeConductor(config.mooncake_conductor),
}


def build_policy(config: RoutingConfig, name: PolicyName | None = None) -> Policy:
    """Return a new policy with the parameters of `config`.

    Args:
        config: names it, too.
        name: another one than `config` names.
    """
    name = name or config.policy
    # Policies that are asked side by side do not draw the same numbers.
    return _MAKERS[name](config, Random(f"{name} {config.seed}"))


def build_router(config: RoutingConfig, view: PrefixKnowledge | None) -> Router:
    """Return a new router with the policy and the shadows of `config`.

    Args:
        config: names them.
        view: what each replica holds; None where nothing is to be learned.
    """
    shadows = [Shadow(build_policy(config, name)) for name in config.shadow]
    return Router(build_policy(config), view, shadows)
