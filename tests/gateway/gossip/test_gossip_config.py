"""`GossipConfig` and `links`: what is refused before anything starts, and what is called how."""

import os
import stat

import pytest

from headstart.errors import ConfigError
from headstart.gateway.gossip.links import (
    identify,
    peer_links,
    relay_links,
    sender_name,
    socket_folder,
    unique_place,
    worker_links,
)
from headstart.gateway.gossip.plan import plan_alone, plan_worker
from headstart.routing.gossip.config import GossipConfig, check_gossip

KEY = "0123456789abcdef"
HERE, THERE = "tcp://127.0.0.1:8090", "tcp://10.0.0.2:8090"


@pytest.mark.parametrize(
    "config",
    [
        GossipConfig(),
        GossipConfig(HERE, ("tcp://localhost:8091", "tcp://[::1]:8092")),
        GossipConfig("tcp://*:8090", (THERE, "tcp://gateway-1.gateways:8090"), KEY),
    ],
)
def test_what_makes_sense_is_taken(config):
    """Without a key only on loopback."""
    check_gossip(config)


@pytest.mark.parametrize(
    ("config", "param", "hint"),
    [
        (GossipConfig(peers=(THERE,), key=KEY), "gossip.listen", "would not hear"),
        (GossipConfig(HERE), "gossip.peers", "name the addresses"),
        (GossipConfig(HERE, (THERE,)), "gossip.key_env", "openssl rand"),
        (GossipConfig("tcp://*:1", (HERE,)), "gossip.key_env", "openssl rand"),
        (GossipConfig(HERE, (HERE,), "short"), "gossip.key_env", "5 characters"),
        (GossipConfig("127.0.0.1:8090", (HERE,)), "gossip.listen", "tcp://host:port"),
        (GossipConfig("tcp://127.0.0.1:70000", (HERE,)), "gossip.listen", "tcp://host:port"),
        (GossipConfig("ipc:///tmp/x", (HERE,)), "gossip.listen", "tcp://host:port"),
        (GossipConfig(HERE, (HERE, "http://x:1")), "gossip.peers[1]", "tcp://host:port"),
        (GossipConfig(HERE, ("tcp://*:8090",)), "gossip.peers", "a name or an address"),
    ],
)
def test_what_does_not_is_refused_with_the_next_step(config, param, hint):
    """At the start, and not when a peer is missed."""
    with pytest.raises(ConfigError, match=hint) as refused:
        check_gossip(config)
    assert refused.value.param == param


def test_the_key_is_not_shown():
    """Neither by the configuration nor by an error about it."""
    assert KEY not in repr(GossipConfig(HERE, (THERE,), KEY))
    assert KEY not in repr(peer_links(GossipConfig(HERE, (THERE,), KEY)))
    with pytest.raises(ConfigError) as refused:
        check_gossip(GossipConfig(HERE, (THERE,), "tooshort"))
    assert "tooshort" not in str(refused.value)


def test_the_folder_is_its_users_alone_and_goes_away():
    """What is said there is not encrypted."""
    with socket_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        links = worker_links(folder, 0, 2, has_peers=True)
        for endpoint in (*links.binds, *links.connects):
            assert len(os.fsencode(endpoint.removeprefix("ipc://"))) < 100
    assert not folder.exists()


def test_a_temporary_folder_with_a_long_name_does_not_stop_it(monkeypatch, tmp_path):
    """The system's limit for a socket's path is about a hundred bytes."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with socket_folder() as folder:
        assert len(os.fsencode(folder)) < 60


def test_workers_and_relay_fit_together(tmp_path):
    """Everybody connects to all that others bind, and to nothing else."""
    links = [worker_links(tmp_path, index, 3, has_peers=True) for index in range(3)]
    relay = relay_links(tmp_path, 3)
    binds = {endpoint for each in (*links, relay) for endpoint in each.binds}
    assert len(binds) == 4
    for each in links:
        assert set(each.connects) == binds - set(each.binds)
    assert set(relay.connects) == binds - set(relay.binds)


def test_a_worker_keeps_its_name_over_a_restart_and_a_lone_gateway_does_not(tmp_path):
    """Who takes a worker's place takes its load away; a lone gateway's may be another's name."""
    config = GossipConfig(HERE, (HERE,))
    plans = [plan_worker(config, tmp_path, index, 2) for index in (0, 0, 1)]
    assert plans[0] == plans[1]
    assert plans[0].sender != plans[2].sender
    assert any("peers" in endpoint for endpoint in plans[0].links.connects)
    assert plan_alone(config).sender != plan_alone(config).sender
    assert plan_alone(GossipConfig()) is None


def test_an_engine_on_loopback_is_another_one_on_each_host(monkeypatch):
    """And one with an address of its own is the same from everywhere."""
    near, far = identify("a", "http://127.0.0.1:8000"), identify("a", "http://10.0.0.9:8000")
    assert near == identify("a", "http://127.0.0.1:8000")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert near != identify("a", "http://127.0.0.1:8000")
    assert far == identify("a", "http://10.0.0.9:8000")


@pytest.mark.parametrize("host", ["gw-1.example", "büro pc", "", "x" * 300])
def test_a_senders_name_can_be_told_whatever_the_host_is_called(monkeypatch, host):
    """It is shown in logs, so nothing else is let in."""
    import re

    monkeypatch.setattr("socket.gethostname", lambda: host)
    name = sender_name(f"{unique_place()}/12")
    assert re.fullmatch(r"[A-Za-z0-9._:/-]{1,96}", name)
    assert unique_place() != unique_place()
