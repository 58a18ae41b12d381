"""Kubernetes EndpointSlices as replicas: what is read of them, and what follows. No I/O.

Source: discovery.k8s.io/v1, https://kubernetes.io/docs/reference/kubernetes-api/service-resources/
endpoint-slice-v1/ and https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.source import bracketed, found_replica

SERVICE_LABEL: Final = "kubernetes.io/service-name"


class Metadata(msgspec.Struct, rename="camel"):
    """Name and version of an object or a list."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Conditions(msgspec.Struct):
    """An endpoint's state; None means that nobody has said."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct):
    """The object behind an endpoint."""

    kind: str = ""
    name: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    """One process behind a service; all of its addresses lead to it."""

    addresses: list[str] = []
    conditions: Conditions | None = None
    target_ref: TargetRef | None = None


class EndpointPort(msgspec.Struct):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(msgspec.Struct, rename="camel"):
    """Some of a service's endpoints, of one family of addresses."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None


class SliceList(msgspec.Struct):
    """The answer to a list."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    items: list[EndpointSlice] | None = None


class PortUnknown(Exception):
    """No slice has the port that is asked for."""


def slice_replicas(
    slices: Iterable[EndpointSlice], service: str, port: str | int | None, template: ReplicaConfig
) -> list[ReplicaConfig]:
    """Return the replicas behind a service.

    Those that are ready; where none is, those that serve while they terminate, as kube-proxy does:
    the last pod of a rolling update is better than none.

    Args:
        slices: all of the service.
        service: its name, for endpoints that are no pods.
        port: name or number; None if there is but one.
        template: what all replicas have in common.

    Raises:
        PortUnknown: there are endpoints, and none has that port.
    """
    ready: dict[str, ReplicaConfig] = {}
    serving: dict[str, ReplicaConfig] = {}
    unmatched: set[str] = set()
    # A pod with addresses of two families is in two slices, and is one replica.
    for one in sorted(slices, key=lambda each: (each.address_type != "IPv4", each.metadata.name)):
        number = _number(one.ports or [], port)
        if number is None:
            if one.endpoints:
                unmatched.update(_port_texts(one.ports or []))
            continue
        for name, address, conditions in _endpoints(one, service, number):
            if conditions.ready is not False:
                ready.setdefault(name, found_replica(template, name, address, number))
            elif conditions.serving:
                serving.setdefault(name, found_replica(template, name, address, number))
    if not (ready or serving) and unmatched:
        wanted = "one port alone" if port is None else f"the port {port!r}"
        raise PortUnknown(f"no endpoint has {wanted}; there are: {', '.join(sorted(unmatched))}")
    return sorted((ready or serving).values(), key=lambda config: config.name)


def _endpoints(
    one: EndpointSlice, service: str, port: int
) -> Iterator[tuple[str, str, Conditions]]:
    for endpoint in one.endpoints or []:
        if not endpoint.addresses:
            continue
        address, target = endpoint.addresses[0], endpoint.target_ref
        # A pod's name outlives its address in a stateful set, and routing hashes names.
        is_pod = target is not None and target.kind == "Pod" and target.name
        own = target.name if target is not None and is_pod else f"{service}-{bracketed(address)}"
        namespace = one.metadata.namespace or "default"
        yield f"{namespace}/{own}:{port}", address, endpoint.conditions or Conditions()


def _number(ports: list[EndpointPort], wanted: str | int | None) -> int | None:
    tcp = [each for each in ports if each.protocol in (None, "", "TCP") and each.port is not None]
    if wanted is None:
        return tcp[0].port if len(tcp) == 1 else None
    for each in tcp:
        if each.name == wanted or each.port == wanted:
            return each.port
    return None


def _port_texts(ports: list[EndpointPort]) -> Iterator[str]:
    for each in ports:
        yield f"{each.name} ({each.port})" if each.name else str(each.port)
