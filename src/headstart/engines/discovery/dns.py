"""Replicas behind a DNS name: one for each of its addresses, as a headless service has them.

A and AAAA records only: the port is the same for all. SRV records, which name ports, would take a
resolver of our own; where ports differ, use Kubernetes or a file. The system's resolver does not
tell for how long an answer holds, so the name is asked for again every `ttl_s`.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.source import SourceListener, bracketed, found_replica

_ANSWER_S: Final = 5.0

_GRACE_ANSWERS: Final = 3
"""An address goes once it was left out of so many answers: servers with many addresses give some
of them each time."""

# The latter is not everywhere.
_NO_ADDRESS: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns a name's addresses; raises OSError, socket.gaierror where the name has none."""


@dataclass(frozen=True, slots=True)
class DnsConfig:
    """Which name.

    Attributes:
        host: to resolve.
        port: of every engine behind it.
        ttl_s: > 0; between two questions.
    """

    host: str
    port: int
    ttl_s: float = 10.0


async def resolve_addresses(host: str) -> list[str]:
    """Ask the system's resolver; numbers and /etc/hosts work, too.

    Raises:
        OSError: there was no answer, or it is that there are none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class DnsSource:
    """Resolves one name again and again.

    Args:
        config: which.
        template: what all replicas behind it have in common.
        resolve: asks for addresses.
    """

    def __init__(
        self, config: DnsConfig, template: ReplicaConfig, resolve: Resolve = resolve_addresses
    ) -> None:
        self._config = config
        self._template = template
        self._resolve = resolve

    @property
    def label(self) -> str:
        """What people call it."""
        return f"dns {bracketed(self._config.host)}:{self._config.port}"

    @property
    def grace_s(self) -> float:
        """As long as a few answers take."""
        return _GRACE_ANSWERS * self._config.ttl_s

    async def watch(self, listener: SourceListener) -> None:
        """Tell the replicas of each answer, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    addresses = await self._resolve(self._config.host)
            except TimeoutError:
                listener.failed(f"no answer within {_ANSWER_S:g} s")
            except socket.gaierror as error:
                if error.errno in _NO_ADDRESS:
                    listener.found(())
                else:
                    listener.failed(error.strerror or "it cannot be resolved")
            except (OSError, UnicodeError) as error:  # a name that cannot be one is the latter
                listener.failed(f"it cannot be resolved: {error}")
            else:
                listener.found(self._replicas(addresses))
            await asyncio.sleep(self._config.ttl_s)

    def _replicas(self, addresses: Sequence[str]) -> list[ReplicaConfig]:
        # Both families lead to the same engines; counting them twice would double their load.
        known = set(addresses)
        usable = {address for address in known if ":" not in address} or known
        service = self._config.host.split(".")[0] or "engine"
        port = self._config.port
        return [
            found_replica(self._template, f"{service}-{bracketed(each)}-{port}", each, port)
            for each in sorted(usable)
        ]
