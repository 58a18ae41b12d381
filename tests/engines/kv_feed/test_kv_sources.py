"""What engines answer about their publishers, and what they might."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.engines.kv_feed.config import KvEventsConfig
from headstart.engines.kv_feed.sources import (
    BadKvSource,
    KvSource,
    ReplicaHost,
    configured_sources,
    described_sources,
    listed_sources,
)

HOST = ReplicaHost("vllm-0.models", ("10.0.0.7", "fd00::7"))
HERE = ReplicaHost("127.0.0.1", ("127.0.0.1",))

LISTED = {
    "data_parallel_rank": 0,
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558",
    "topic": "kv@r1@smol",
}
DESCRIBED = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 16,
    "dp_size": 2,
}
ARGUMENTS = '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}'


def listed(*entries, host=HOST):
    return listed_sources(json.dumps([LISTED | each for each in entries]).encode(), host)


def described(host=HOST, **info):
    return described_sources(json.dumps(info).encode(), host)


def test_a_wildcard_means_the_replicas_own_host():
    """The publisher binds every address; the one that we reach is the replica's."""
    (source,) = listed({})
    assert source == KvSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv@r1@smol")


@pytest.mark.parametrize("wildcard", ["*", "0.0.0.0", "[::]"])
def test_every_spelling_of_the_wildcard_is_known(wildcard):
    """ZMQ and the system write "any address" in three ways."""
    (source,) = listed({"endpoint": f"tcp://{wildcard}:5557"})
    assert source.endpoint == "tcp://10.0.0.7:5557"


def test_an_address_of_the_replicas_own_host_is_its_own():
    """A name and the addresses that it stands for are the same host."""
    for endpoint in ("tcp://VLLM-0.models:1", "tcp://10.0.0.7:1"):
        (source,) = listed({"endpoint": endpoint})
        assert source.endpoint == "tcp://10.0.0.7:1"
    (source,) = listed({"endpoint": "tcp://[fd00::7]:1"})
    assert source.endpoint == "tcp://[fd00::7]:1"


def test_an_ipv6_address_keeps_its_brackets():
    """A port cannot be told from an address without them."""
    (source,) = listed({}, host=ReplicaHost("::1", ("::1",)))
    assert source.endpoint == "tcp://[::1]:5557"


def test_the_names_of_this_machine_are_one_host():
    """An engine on localhost may say 127.0.0.1."""
    (source,) = listed({"endpoint": "tcp://localhost:7"}, host=HERE)
    assert source.endpoint == "tcp://127.0.0.1:7"


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://169.254.169.254:80", "tcp://127.0.0.1:6379", "tcp://localhost:1", "tcp://evil.test:1"],
)
def test_an_engine_cannot_make_us_dial_another_host(endpoint):
    """Its answer is untrusted: it may name what only we can reach, ourselves included."""
    with pytest.raises(BadKvSource, match="own host"):
        listed({"endpoint": endpoint})
    with pytest.raises(BadKvSource, match="own host"):
        listed({"replay_endpoint": endpoint})


@pytest.mark.parametrize(
    "endpoint",
    [
        *("ipc:///tmp/x", "inproc://x", "http://10.0.0.7:1", "tcp://10.0.0.7", "tcp://*:*"),
        *("tcp://*:0", "tcp://*:65536", "tcp://*:5557/x", "tcp://10.0.0.7;10.0.0.8:1", "", 5, None),
        "tcp://" + "a" * 600 + ":1",
    ],
)
def test_only_tcp_addresses_with_a_port_are_taken_from_an_engine(endpoint):
    """Everything else is for another machine, another protocol, or nonsense."""
    with pytest.raises(BadKvSource):
        listed({"endpoint": endpoint})


def test_each_rank_is_a_source_of_its_own():
    """vLLM lists the ports of each rank."""
    two = listed({}, {"data_parallel_rank": 1, "endpoint": "tcp://*:5558", "replay_endpoint": None})
    assert [(each.rank, each.endpoint) for each in two] == [
        (0, "tcp://10.0.0.7:5557"),
        (1, "tcp://10.0.0.7:5558"),
    ]
    assert two[1].replay_endpoint is None
    with pytest.raises(BadKvSource, match="rank"):
        listed({}, {})


def test_vllm_0_32_tells_its_configurations_by_rank():
    """What a running one answered, with its ports."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "kv@r0@smol",
    }
    told = {
        str(rank): config
        | {"endpoint": f"tcp://*:{5557 + rank}", "replay_endpoint": f"tcp://*:{6557 + rank}"}
        for rank in range(2)
    }
    body = json.dumps(told)
    assert listed_sources(body.encode(), HERE) == [
        KvSource(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:6557", "kv@r0@smol"),
        KvSource(1, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:6558", "kv@r0@smol"),
    ]
    off = body.replace("true", "false")
    assert listed_sources(off.encode(), HERE) == []
    assert listed_sources(body.replace("zmq", "null").encode(), HERE) == []
    assert listed_sources(b"{}", HERE) == []
    for rank in ("-1", "x", "1.0", "\u0661"):
        with pytest.raises(BadKvSource):
            listed_sources(json.dumps({rank: LISTED}).encode(), HERE)


def test_an_engine_that_publishes_nothing_has_no_source():
    """An empty list, or a server that says nothing of events."""
    assert listed_sources(b"[]", HOST) == []
    assert described(version="0.5") == []
    assert described(kv_events=None, kv_events_config=None) == []
    assert described(kv_events=DESCRIBED | {"publisher": "null"}) == []


def test_sglangs_ranks_count_up_from_its_base_port():
    """The replay endpoint is only in the text of its own argument."""
    two = described(kv_events=DESCRIBED, kv_events_config=ARGUMENTS)
    assert two == [
        KvSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557", "kv"),
        KvSource(1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558", "kv"),
    ]


def test_an_older_sglang_shows_only_its_arguments():
    """They say the same."""
    (source,) = described(kv_events_config=ARGUMENTS, dp_size=1)
    assert source == KvSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557")


def test_sglang_may_list_its_sources_as_vllm_does():
    """A list wins, because it needs no arithmetic."""
    (source,) = described(kv_event_sources=[LISTED], kv_events=DESCRIBED)
    assert source.endpoint == "tcp://10.0.0.7:5557"


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint_host": "10.0.0.8"},
        {"endpoint_port_base": 65_535},
        {"endpoint_port_base": "5557"},
        {"dp_size": 100_000},
        {"dp_size": -1},
        {"topic": ["kv"]},
    ],
)
def test_a_description_that_cannot_be_right_is_refused(change):
    """Another host, a port beyond the last one, or ranks without number."""
    with pytest.raises(BadKvSource):
        described(kv_events=DESCRIBED | change)


def test_what_the_operator_names_is_taken_as_it_is():
    """Another host and ipc are the operator's right."""
    config = KvEventsConfig("tcp://10.9.9.9:5557", "ipc:///run/replay", "kv", num_ranks=2)
    assert configured_sources(config, HOST) == [
        KvSource(0, "tcp://10.9.9.9:5557", "ipc:///run/replay", "kv"),
        KvSource(1, "tcp://10.9.9.9:5558", "ipc:///run/replay_dp1", "kv"),
    ]
    assert configured_sources(KvEventsConfig("tcp://*:1"), HOST) == [
        KvSource(0, "tcp://10.0.0.7:1")
    ]


@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from([*LISTED, *DESCRIBED, "kv_events", "kv_events_config", "x"]),
                    inner,
                    max_size=5,
                )
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_answer_is_read_or_refused(body):
    """Nothing but `BadKvSource` comes out, and only addresses of the replica do."""
    for read in (listed_sources, described_sources):
        try:
            sources = read(body, HOST)
        except BadKvSource:
            continue
        own = ("tcp://10.0.0.7:", "tcp://[fd00::7]:")
        assert all(each.endpoint.startswith(own) for each in sources)
