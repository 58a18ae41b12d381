"""The section `gossip`: other gateways, and the secret that they share."""

from collections.abc import Mapping
from typing import Any, Final

from headstart.config.document import Node
from headstart.config.secrets import read_secret, refuse_literal
from headstart.config.values import (
    Reading,
    check_keys,
    mapping_of,
    read_scalar,
    read_text,
    read_texts,
)
from headstart.errors import ConfigError
from headstart.routing.gossip.config import GossipConfig, check_gossip

GOSSIP_KEYS: Final = ("listen", "peers", "key_env", "key_file", "batch_s", "silence_s")


def read_gossip(
    node: Node | None, environment: Mapping[str, str], reading: Reading
) -> GossipConfig:
    """Read the section; without it there are no peers.

    Raises:
        ConfigError: it cannot be used.
    """
    if node is None:
        return GossipConfig()
    entries = mapping_of(node, "gossip")
    refuse_literal(entries, "key", "gossip.key")
    check_keys(entries, GOSSIP_KEYS, "gossip")
    read: dict[str, Any] = {
        name: read_scalar(entries[name], float, f"gossip.{name}", reading)
        for name in ("batch_s", "silence_s")
        if name in entries
    }
    if "listen" in entries:
        read["listen"] = read_text(entries["listen"], "gossip.listen", reading)
    if "peers" in entries:
        read["peers"] = read_texts(entries["peers"], "gossip.peers", reading)
    read["key"] = read_secret(entries, "key", "gossip.key", environment, reading)
    config = GossipConfig(**read)
    try:
        check_gossip(config)
    except ConfigError as error:
        raise ConfigError(f"{node.origin}: {error.message}", param=error.param) from error
    return config
