"""Several processes' view of one gateway, made one."""

from dataclasses import replace

from headstart.engines.base import ReplicaConfig
from headstart.gateway.limits import LimitUse
from headstart.gateway.merge import PastTransitions, merge_statuses
from headstart.gateway.state import GatewayStatus, ReplicaStatus

REPLICA = ReplicaStatus(
    name="r0",
    url="http://a",
    kind="vllm",
    models=("m",),
    is_available=True,
    reason="",
    in_flight=2,
    in_flight_bytes=100,
    idle_connections=3,
    connections=5,
    state="available",
    transitions={"available": 1},
)
STATUS = GatewayStatus(
    is_draining=False,
    is_ready=True,
    num_open_requests=2,
    num_client_connections=4,
    replicas=(REPLICA,),
    num_waiting=1,
    num_waiting_bytes=10,
    limits=(LimitUse("acme", 1, 2, 3),),
)
CONFIGS = (ReplicaConfig("r0", "http://a", models=("m",)),)


def merged(*statuses, past=None, is_draining=False):
    named = {f"worker-{index}": status for index, status in enumerate(statuses)}
    return merge_statuses(named, CONFIGS, past or PastTransitions(), is_draining=is_draining)


def test_one_process_is_itself():
    """Nothing is added to it."""
    assert merged(STATUS) == STATUS


def test_what_can_be_summed_is():
    """Requests, connections, what waits and what tenants use."""
    both = merged(STATUS, STATUS)
    assert (both.num_open_requests, both.num_client_connections) == (4, 8)
    assert (both.num_waiting, both.num_waiting_bytes) == (2, 20)
    assert both.limits == (LimitUse("acme", 2, 4, 6),)
    (replica,) = both.replicas
    assert (replica.in_flight, replica.in_flight_bytes) == (4, 200)
    assert (replica.idle_connections, replica.connections) == (6, 10)
    assert replica.transitions == {"available": 2}


def test_the_worst_view_of_a_replica_is_shown_with_whose_it_is():
    """One process cannot reach it: that is what an operator must see."""
    down = replace(REPLICA, is_available=False, state="down", reason="refused", weight=0.5)
    (replica,) = merged(STATUS, replace(STATUS, replicas=(down,))).replicas
    assert (replica.state, replica.is_available) == ("down", False)
    assert (replica.reason, replica.weight) == ("worker-1: refused", 0.5)


def test_a_reason_that_all_share_stands_alone():
    """Nobody in particular has it."""
    down = replace(STATUS, replicas=(replace(REPLICA, state="down", reason="refused"),))
    assert merged(down, down).replicas[0].reason == "refused"


def test_it_is_ready_as_long_as_one_process_is():
    """And not while all of it ends."""
    tired = replace(STATUS, is_ready=False)
    assert merged(tired, STATUS).is_ready
    assert not merged(tired, tired).is_ready
    assert not merged(STATUS, STATUS, is_draining=True).is_ready


def test_one_process_that_drains_does_not_make_all_of_it_drain():
    """It is being replaced."""
    assert not merged(STATUS, replace(STATUS, is_draining=True)).is_draining


def test_without_any_process_the_replicas_are_known_and_down():
    """All workers are being replaced: /replicas still lists what there is."""
    nobody = merged()
    assert not nobody.is_ready
    (replica,) = nobody.replicas
    assert (replica.name, replica.models, replica.state) == ("r0", ("m",), "down")
    assert replica.reason == "no worker is up"


def test_transitions_outlive_their_process():
    """They are counters."""
    past = PastTransitions()
    past.add(STATUS)
    past.add(replace(STATUS, replicas=(replace(REPLICA, transitions={"down": 2}),)))
    (replica,) = merged(STATUS, past=past).replicas
    assert replica.transitions == {"available": 2, "down": 2}
    assert merged(past=past).replicas[0].transitions == {"available": 1, "down": 2}
