"""EndpointSlices as replicas; the objects are in the form of the Kubernetes API reference."""

import msgspec
import pytest
from heard import TEMPLATE
from kube_api import endpoint, endpoint_slice

from headstart.engines.discovery.endpoint_slices import (
    EndpointSlice,
    PortUnknown,
    slice_replicas,
)


def replicas(*slices, port="http"):
    read = [msgspec.convert(each, EndpointSlice) for each in slices]
    return slice_replicas(read, "vllm", port, TEMPLATE)


def names(found) -> list[str]:
    return [config.name for config in found]


def test_a_ready_pod_is_a_replica_named_after_it():
    """The name outlives the address in a stateful set, and routing hashes names."""
    (one,) = replicas(endpoint_slice("s", endpoint("10.1.2.3", pod="vllm-0")))
    assert (one.name, one.url) == ("default/vllm-0:8000", "http://10.1.2.3:8000")
    assert (one.kind, one.models, one.api_key) == ("vllm", ("m",), "sk-secret")


def test_an_endpoint_that_is_no_pod_is_named_after_its_address():
    """Slices can be written by hand, for engines outside of the cluster."""
    (one,) = replicas(endpoint_slice("s", endpoint("10.1.2.3", pod=None)))
    assert one.name == "default/vllm-10.1.2.3:8000"


@pytest.mark.parametrize(
    ("conditions", "is_used"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({}, True),
        (None, True),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": False, "serving": False, "terminating": True}, False),
    ],
)
def test_conditions_decide(conditions, is_used):
    """What nobody has said counts as ready."""
    other = endpoint("10.0.0.9", pod="other")
    found = replicas(
        endpoint_slice("s", endpoint("10.0.0.1", pod="a", conditions=conditions), other)
    )
    assert ("default/a:8000" in names(found)) == is_used
    assert "default/other:8000" in names(found)


def test_where_none_is_ready_one_that_still_serves_is_used():
    """The last pod of a rolling update is better than none, as for kube-proxy."""
    ending = {"ready": False, "serving": True, "terminating": True}
    gone = {"ready": False, "serving": False, "terminating": True}
    found = replicas(
        endpoint_slice(
            "s",
            endpoint("10.0.0.1", pod="a", conditions=ending),
            endpoint("10.0.0.2", pod="b", conditions=gone),
        )
    )
    assert names(found) == ["default/a:8000"]


@pytest.mark.parametrize(
    ("port", "number"), [("http", 8000), ("metrics", 9000), (9000, 9000), (8000, 8000)]
)
def test_a_port_is_chosen_by_name_or_number(port, number):
    """A pod may have several."""
    ports = [
        {"name": "http", "port": 8000, "protocol": "TCP"},
        {"name": "metrics", "port": 9000, "protocol": "TCP"},
        {"name": "probe", "port": 8000, "protocol": "UDP"},
    ]
    (one,) = replicas(endpoint_slice("s", endpoint("10.0.0.1", pod="a"), ports=ports), port=port)
    assert (one.name, one.url) == (f"default/a:{number}", f"http://10.0.0.1:{number}")


def test_the_only_port_needs_no_name():
    """A port without a name has an empty one."""
    ports = [{"name": "", "port": 8000, "protocol": "TCP"}]
    one = endpoint_slice("s", endpoint("10.0.0.1", pod="a"), ports=ports)
    assert names(replicas(one, port=None)) == ["default/a:8000"]


@pytest.mark.parametrize("port", ["grpc", None])
def test_a_port_that_is_not_there_is_said_with_those_that_are(port):
    """An empty list would look like a service without pods."""
    ports = [{"name": "http", "port": 1, "protocol": "TCP"}, {"name": "b", "port": 2}]
    with pytest.raises(PortUnknown, match=r"there are: b \(2\), http \(1\)"):
        replicas(endpoint_slice("s", endpoint("10.0.0.1", pod="a"), ports=ports), port=port)


def test_a_pod_in_two_slices_is_one_replica():
    """Of two families of addresses, or while it is moved from one slice to another."""
    found = replicas(
        endpoint_slice("v6", endpoint("fd00::1", pod="a"), address_type="IPv6"),
        endpoint_slice("v4", endpoint("10.0.0.1", pod="a")),
        endpoint_slice("new", endpoint("10.0.0.1", pod="a"), endpoint("10.0.0.2", pod="b")),
    )
    assert [config.url for config in found] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]


def test_ipv6_alone_has_brackets_in_its_url():
    """As every URL."""
    (one,) = replicas(endpoint_slice("v6", endpoint("fd00::1", pod=None), address_type="IPv6"))
    assert (one.name, one.url) == ("default/vllm-[fd00::1]:8000", "http://[fd00::1]:8000")


def test_slices_without_endpoints_list_none():
    """Go writes an empty list as null."""
    empty = endpoint_slice("s") | {"endpoints": None}
    assert replicas(empty, empty | {"ports": None}) == []
    assert replicas() == []
