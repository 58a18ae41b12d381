"""The state of several gateway processes as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headstart.engines.base import ReplicaConfig
from headstart.gateway.cache_status import merge_caches, merge_shadows
from headstart.gateway.limits import LimitUse
from headstart.gateway.state import GatewayStatus, ReplicaStatus
from headstart.routing.health import HealthState

_WORST_LAST: Final = [state.value for state in HealthState]
"""States from the best to the worst, as the enumeration lists them."""


def merge_statuses(
    statuses: Mapping[str, GatewayStatus],
    replicas: Sequence[ReplicaConfig],
    past: "PastTransitions",
    *,
    is_draining: bool,
) -> GatewayStatus:
    """Sum what can be summed, and show the worst of the rest.

    Args:
        statuses: by the name of the process; may be empty.
        replicas: what there should be, for the case that nobody says anything about them.
        past: what processes that have ended counted.
        is_draining: all of them together are ending; one alone is nobody's business.
    """
    if not statuses:
        unknown = [
            ReplicaStatus(
                name=each.name,
                url=each.url,
                kind=each.kind,
                models=each.models,
                is_available=False,
                reason="no worker is up",
                in_flight=0,
                in_flight_bytes=0,
                idle_connections=0,
                state=HealthState.DOWN.value,
                transitions=past.of(each.name),
            )
            for each in replicas
        ]
        return GatewayStatus(is_draining, False, 0, 0, tuple(unknown))
    # By name: one process may have let a replica go that another still has requests with.
    views: dict[str, dict[str, ReplicaStatus]] = {}
    for worker, status in statuses.items():
        for replica in status.replicas:
            views.setdefault(replica.name, {})[worker] = replica
    return GatewayStatus(
        is_draining=is_draining,
        is_ready=not is_draining and any(status.is_ready for status in statuses.values()),
        num_open_requests=sum(each.num_open_requests for each in statuses.values()),
        num_client_connections=sum(each.num_client_connections for each in statuses.values()),
        num_waiting=sum(each.num_waiting for each in statuses.values()),
        num_waiting_bytes=sum(each.num_waiting_bytes for each in statuses.values()),
        limits=_merge_limits([each.limits for each in statuses.values()]),
        replicas=tuple(_merge_replica(each, past) for each in views.values()),
        shadows=merge_shadows([each.shadows for each in statuses.values()]),
        gossip={
            worker: figures
            for worker, status in statuses.items()
            for figures in status.gossip.values()
        },
    )


class PastTransitions:
    """How often each replica came to each state, as counted by processes that have ended."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def add(self, status: GatewayStatus) -> None:
        """Keep the last counts of a process that has ended."""
        for replica in status.replicas:
            self._counts[replica.name] = _sum((self.of(replica.name), replica.transitions))

    def of(self, replica: str) -> Mapping[str, int]:
        """Return the counts of one replica."""
        return self._counts.get(replica, {})


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for state, count in each.items():
            total[state] = total.get(state, 0) + count
    return total


def _merge_limits(views: Sequence[Sequence[LimitUse]]) -> tuple[LimitUse, ...]:
    return tuple(
        LimitUse(
            tenant=uses[0].tenant,
            open_requests=sum(use.open_requests for use in uses),
            requests=sum(use.requests for use in uses),
            input_tokens=sum(use.input_tokens for use in uses),
        )
        for uses in zip(*views, strict=True)
    )


def _merge_replica(views: Mapping[str, ReplicaStatus], past: PastTransitions) -> ReplicaStatus:
    """Make one of what each process says of one replica."""
    worst_name = max(views, key=lambda name: _WORST_LAST.index(views[name].state))
    worst = views[worst_name]
    has_one_state = all(view.state == worst.state for view in views.values())
    return replace(
        worst,
        models=tuple(sorted(set().union(*(view.models for view in views.values())))),
        is_available=all(view.is_available for view in views.values()),
        reason=worst.reason if has_one_state else f"{worst_name}: {worst.reason}",
        in_flight=sum(view.in_flight for view in views.values()),
        in_flight_bytes=sum(view.in_flight_bytes for view in views.values()),
        idle_connections=sum(view.idle_connections for view in views.values()),
        connections=sum(view.connections for view in views.values()),
        weight=min(view.weight for view in views.values()),
        transitions=_sum((past.of(worst.name), *(view.transitions for view in views.values()))),
        cache=merge_caches([view.cache for view in views.values()]),
    )
