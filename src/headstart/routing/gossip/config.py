"""Other gateways in front of the same replicas: where they are, and what is checked of that."""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from headstart.errors import ConfigError

MIN_KEY_CHARACTERS: Final = 16

_ENDPOINT: Final = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+|\*):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """What this gateway and its peers need to hear each other.

    Workers of one host hear each other without any of it.

    Attributes:
        listen: where peers connect, `tcp://host:port`; None without peers.
        peers: where they listen; this gateway's own address among them does no harm.
        key: secret that all peers share; encrypts what they say. Needed off loopback.
        batch_s: from the first thing to tell to the message that tells it.
        silence_s: a peer's load counts no more once nothing was heard of it for so long.
    """

    listen: str | None = None
    peers: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)
    batch_s: float = 0.005
    silence_s: float = 2.0

    @property
    def has_peers(self) -> bool:
        """Other hosts are to be heard."""
        return self.listen is not None


def check_gossip(config: GossipConfig) -> None:
    """Check what single values do not show.

    Raises:
        ConfigError: an address cannot be used, one of `listen` and `peers` is there without the
            other, or prompts' keys would leave the host in the clear.
    """
    if config.listen is None and not config.peers:
        return
    if config.listen is None:
        raise ConfigError(
            "`gossip.peers` needs `gossip.listen`, or the peers would not hear this gateway; "
            "write e.g. `listen: tcp://0.0.0.0:8090`",
            param="gossip.listen",
        )
    if not config.peers:
        raise ConfigError(
            "`gossip.listen` needs `gossip.peers`: name the addresses on which the other gateways "
            "listen",
            param="gossip.peers",
        )
    _host_of(config.listen, "gossip.listen")
    for index, peer in enumerate(config.peers):
        if _host_of(peer, f"gossip.peers[{index}]") == "*":
            raise ConfigError(
                f"`gossip.peers[{index}]` is {peer}; a peer has a name or an address",
                param="gossip.peers",
            )
    _check_key(config)


def _check_key(config: GossipConfig) -> None:
    if config.key is None:
        endpoints = [config.listen or "", *config.peers]
        if not all(is_loopback(_host_of(each, "gossip")) for each in endpoints):
            raise ConfigError(
                "`gossip` reaches other hosts and has no key: what gateways tell each other "
                "allows to guess prompts, so it is encrypted; write `key_env: ITS_NAME`, the same "
                "secret on all of them (`openssl rand -hex 32`)",
                param="gossip.key_env",
            )
    elif len(config.key) < MIN_KEY_CHARACTERS:
        raise ConfigError(
            f"the secret of `gossip` has {len(config.key)} characters and needs "
            f"{MIN_KEY_CHARACTERS}, or it could be found by trying (`openssl rand -hex 32`)",
            param="gossip.key_env",
        )


def _host_of(endpoint: str, key: str) -> str:
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or int(match[2]) > 65535:
        raise ConfigError(
            f"`{key}` cannot be {endpoint!r}; write `tcp://host:port`, e.g. tcp://10.0.0.1:8090",
            param=key,
        )
    return match[1].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, seen from any other as itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
