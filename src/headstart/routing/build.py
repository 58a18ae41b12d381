"""Policies from their configuration."""

from headstart.routing.config import PolicyName, RoutingConfig
from headstart.routing.expected_ttft import ExpectedTtft
from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.lmetric import LMetric
from headstart.routing.policy import Policy
from headstart.routing.prefix_hash import PrefixHash
from headstart.routing.round_robin import RoundRobin
from headstart.routing.router import PrefixKnowledge, Router
from headstart.routing.session_affinity import SessionAffinity
from headstart.routing.sglang_cache_aware import SglangCacheAware
from headstart.routing.shadow import Shadow


def build_policy(config: RoutingConfig, name: PolicyName | None = None) -> Policy:
    """Return a new policy with the parameters of `config`.

    Args:
        config: names it, too.
        name: another one than `config` names.
    """
    match name or config.policy:
        case "round_robin":
            return RoundRobin()
        case "least_loaded":
            return LeastLoaded()
        case "prefix_hash":
            return PrefixHash(config.prefix_hash)
        case "session_affinity":
            return SessionAffinity(config.prefix_hash)
        case "lmetric":
            return LMetric()
        case "sglang_cache_aware":
            return SglangCacheAware(config.sglang_cache_aware)
        case "expected_ttft":
            return ExpectedTtft(config.expected_ttft, config.prefix_hash)


def build_router(config: RoutingConfig, view: PrefixKnowledge | None) -> Router:
    """Return a new router with the policy and the shadows of `config`.

    Args:
        config: names them.
        view: what each replica holds; None where nothing is to be learned.
    """
    shadows = [Shadow(build_policy(config, name)) for name in config.shadow]
    return Router(build_policy(config), view, shadows)
