"""Who binds and who connects, and how what leaves the host is encrypted.

Workers of a host hear each other over sockets in a folder that only their user can enter. What goes
to other hosts goes through CurveZMQ: every process derives the same pair of keys from the shared
secret, and whoever does not have the secret has neither. He is refused before he has sent or heard
anything; each connection has keys of its own, so that nothing recorded can be played again, nor
read later by whoever finds the secret.

Source: CurveZMQ, https://rfc.zeromq.org/spec/26
"""

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

from headstart.errors import ConfigError
from headstart.routing.gossip.config import GossipConfig, is_loopback
from headstart.routing.gossip.roster import replica_id

_RELAY: Final = "peers"
_MAX_PATH_BYTES: Final = 90
"""Of a socket in the folder: macOS allows 103 bytes."""


@dataclass(frozen=True, slots=True)
class Links:
    """Where one publishes, and to whom one listens.

    Attributes:
        binds: endpoints on which one publishes.
        connects: endpoints to which one subscribes.
        key: encrypts both; None on this host.
    """

    binds: tuple[str, ...] = ()
    connects: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)


def peer_links(config: GossipConfig) -> Links:
    """Return the links to other gateways; none without peers."""
    binds = () if config.listen is None else (config.listen,)
    return Links(binds, tuple(dict.fromkeys(config.peers)), config.key)


def worker_links(folder: Path, index: int, num_workers: int, *, has_peers: bool) -> Links:
    """Return a worker's links to the others of its host.

    Args:
        folder: theirs.
        index: which worker it is, 0 .. `num_workers` - 1.
        num_workers: how many there are.
        has_peers: the supervisor relays what other hosts say.
    """
    others = [_socket(folder, str(other)) for other in range(num_workers) if other != index]
    if has_peers:
        others.append(_socket(folder, _RELAY))
    return Links((_socket(folder, str(index)),), tuple(others))


def relay_links(folder: Path, num_workers: int) -> Links:
    """Return the supervisor's links to its workers."""
    workers = tuple(_socket(folder, str(index)) for index in range(num_workers))
    return Links((_socket(folder, _RELAY),), workers)


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Make a folder for the workers' sockets that only this user can enter; remove it after."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _MAX_PATH_BYTES - 32:
        parent = "/tmp"  # noqa: S108 -- the folder itself has a random name and mode 0700
    with tempfile.TemporaryDirectory(
        prefix="headstart-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def host_name() -> str:
    """Return this host's name, as far as a sender's name can hold it."""
    name = "".join(each if each.isalnum() or each in "._-" else "-" for each in _host())
    return name.encode("ascii", "ignore").decode()[:48] or "host"


def sender_name(place: str) -> str:
    """Return a name for a process that no other has.

    Args:
        place: what it is on its host; equal for a process and for the one that replaces it only
            if nothing else ever has it.
    """
    return f"{host_name()}/{place}"


def unique_place() -> str:
    """Return a place that no other process has."""
    return secrets.token_hex(4)


def identify(name: str, url: str) -> bytes:
    """Return what a replica is called between processes.

    Args:
        name: as configured.
        url: as configured; an engine on loopback is another one on each host.
    """
    host = urlsplit(url).hostname or ""
    return replica_id(name, url, _host() if is_loopback(host) else "")


def encrypt(zmq_socket: "zmq.Socket[bytes]", key: str | None, *, is_listener: bool) -> None:
    """Encrypt the connections that a socket makes or takes from now on; None leaves them plain.

    Raises:
        ConfigError: the ZeroMQ library that is installed cannot.
    """
    if key is None:
        return
    if not zmq.has("curve"):
        raise ConfigError(
            "`gossip` has a key, and the installed ZeroMQ library was built without encryption; "
            "install pyzmq from its wheel (`pip install --force-reinstall pyzmq`)",
            param="gossip.key_env",
        )
    digest = blake2b(key.encode(), digest_size=32, person=b"headstart gossip").digest()
    secret = z85.encode(digest)
    public = zmq.curve_public(secret)
    zmq_socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    zmq_socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    if is_listener:
        zmq_socket.setsockopt(zmq.CURVE_SERVER, 1)
    else:
        zmq_socket.setsockopt(zmq.CURVE_SERVERKEY, public)


def _host() -> str:
    return socket.gethostname()


def _socket(folder: Path, name: str) -> str:
    return f"ipc://{folder / name}"
