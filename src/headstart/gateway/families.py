"""The gateway's own metric families: connections, replicas, processes, workers."""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from headstart import __version__
from headstart.gateway.cache_families import cache_families
from headstart.gateway.gossip.statistics import gossip_families
from headstart.gateway.overview import Overview, WorkerStatus
from headstart.gateway.process import ProcessStatus
from headstart.gateway.state import GatewayStatus, ReplicaStatus
from headstart.routing.health import HealthState

_GATEWAY_GAUGES = (
    ("num_open_requests", "open_requests", "Requests not yet answered completely."),
    ("num_client_connections", "client_connections", "Open client connections."),
    ("is_draining", "draining", "1 while new requests are refused."),
    ("num_waiting", "queue_waiting", "Requests that wait for a replica."),
    ("num_waiting_bytes", "queue_waiting_bytes", "Their bodies together."),
)

_LIMITS = (
    ("open_requests", "concurrent"),
    ("requests", "requests_per_minute"),
    ("input_tokens", "input_tokens_per_minute"),
)
"""Fields of `LimitUse`, and the keys of the limits that they count for."""

_REPLICA_GAUGES = (
    ("is_available", "available", "1 if requests may be sent to it."),
    ("in_flight", "in_flight", "Requests sent to it and not finished."),
    ("in_flight_bytes", "in_flight_bytes", "Prompt bytes of these."),
    ("connections", "connections", "Open connections to it, idle ones included."),
    ("weight", "weight", "Its share of the load, 0..1; below 1 after a return."),
)

_PROCESS_GAUGES = (
    ("resident_bytes", "resident_memory_bytes", "Memory that the process holds."),
    ("num_open_fds", "open_fds", "Open file descriptors."),
    ("num_tasks", "event_loop_tasks", "Tasks of its event loop that have not ended."),
)

_WORKER_GAUGES = (
    ("is_up", "up", "1 if the worker takes requests."),
    (
        "report_age_s",
        "report_age_seconds",
        "Since its figures in this answer were taken; grows while it hangs.",
    ),
)


def gateway_families(overview: Overview) -> Iterator[Metric]:
    """Build all families but those over requests and records."""
    build = InfoMetricFamily("headstart_build", "The running headstart.")
    build.add_metric((), {"version": __version__})
    yield build
    yield from _state_families(overview.gateway)
    yield from _replica_families(overview.gateway.replicas)
    yield from cache_families(overview.gateway)
    if overview.gateway.gossip:
        yield from gossip_families(list(overview.gateway.gossip.items()))
    yield from _process_families(overview.processes)
    if overview.workers:
        yield from _worker_families(overview.workers)


def _state_families(status: GatewayStatus) -> Iterator[Metric]:
    for field, name, documentation in _GATEWAY_GAUGES:
        yield GaugeMetricFamily(f"headstart_{name}", documentation, int(getattr(status, field)))
    used = GaugeMetricFamily(
        "headstart_limit_used",
        "Of tenants with limits: requests open now, requests and input tokens of the last minute.",
        labels=("tenant", "limit"),
    )
    for use in status.limits:
        for field, limit in _LIMITS:
            used.add_metric((use.tenant, limit), getattr(use, field))
    yield used


def _replica_families(replicas: tuple[ReplicaStatus, ...]) -> Iterator[Metric]:
    for field, name, documentation in _REPLICA_GAUGES:
        family = GaugeMetricFamily(f"headstart_replica_{name}", documentation, labels=("replica",))
        for replica in replicas:
            family.add_metric((replica.name,), float(getattr(replica, field)))
        yield family
    states = GaugeMetricFamily(
        "headstart_replica_state", "1 for the state it is in.", labels=("replica", "state")
    )
    transitions = CounterMetricFamily(
        "headstart_replica_transitions",
        "How often it came to that state.",
        labels=("replica", "state"),
    )
    for replica in replicas:
        for state in HealthState:
            states.add_metric((replica.name, state.value), float(state.value == replica.state))
            count = replica.transitions.get(state.value, 0)
            transitions.add_metric((replica.name, state.value), count)
    yield from (states, transitions)


def _process_families(processes: tuple[ProcessStatus, ...]) -> Iterator[Metric]:
    cpu = CounterMetricFamily(
        "headstart_process_cpu_seconds",
        "Processor time; starts at 0 again with a replaced worker.",
        labels=("process",),
    )
    for process in processes:
        cpu.add_metric((process.name,), process.cpu_s)
    yield cpu
    for field, name, documentation in _PROCESS_GAUGES:
        family = GaugeMetricFamily(f"headstart_process_{name}", documentation, labels=("process",))
        for process in processes:
            family.add_metric((process.name,), getattr(process, field))
        yield family


def _worker_families(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    for field, name, documentation in _WORKER_GAUGES:
        family = GaugeMetricFamily(f"headstart_worker_{name}", documentation, labels=("process",))
        for worker in workers:
            family.add_metric((worker.name,), float(getattr(worker, field)))
        yield family
    restarts = CounterMetricFamily(
        "headstart_worker_restarts", "How often the worker was replaced.", labels=("process",)
    )
    for worker in workers:
        restarts.add_metric((worker.name,), worker.restarts)
    yield restarts
