"""A policy from its configuration."""

from headstart.routing.config import RoutingConfig
from headstart.routing.least_loaded import LeastLoaded
from headstart.routing.policy import Policy
from headstart.routing.prefix_hash import PrefixHash
from headstart.routing.round_robin import RoundRobin


def build_policy(config: RoutingConfig) -> Policy:
    """Return a new policy with the name and parameters of `config`."""
    match config.policy:
        case "round_robin":
            return RoundRobin()
        case "least_loaded":
            return LeastLoaded()
        case "prefix_hash":
            return PrefixHash(config.prefix_hash)
