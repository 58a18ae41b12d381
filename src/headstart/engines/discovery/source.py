"""What a source of replicas is."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from headstart.engines.base import ReplicaConfig
from headstart.errors import BadRequest, ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/\[\]-]{0,127}")
"""As in the configuration: a name appears in headers, labels and URLs."""


class SourceListener(Protocol):
    """Who hears what a source lists (`roster.Listing`)."""

    def found(self, replicas: Sequence[ReplicaConfig]) -> None:
        """Hear all that the source lists now; names are unique."""
        ...

    def failed(self, reason: str) -> None:
        """Hear that the source could not be asked; what it listed last stands."""
        ...


class Source(Protocol):
    """A place that lists replicas and whose list changes."""

    @property
    def label(self) -> str:
        """What people call it, e.g. `dns vllm.default.svc`."""
        ...

    @property
    def grace_s(self) -> float:
        """How long a replica is kept that the source lists no longer, while it lists others."""
        ...

    async def watch(self, listener: SourceListener) -> None:
        """Tell `listener` the list and each change of it, until cancelled.

        What can go wrong outside is told and tried again, and not raised.
        """
        ...


def found_replica(template: ReplicaConfig, name: str, host: str, port: int) -> ReplicaConfig:
    """Return the replica at an address, with all else as in `template`.

    Args:
        template: its name and URL are not used.
        name: the replica's.
        host: a name or an IP address, IPv6 without brackets.
        port: TCP port.
    """
    return replace(template, name=name, url=f"http://{bracketed(host)}:{port}")


def bracketed(host: str) -> str:
    """Return a host as a URL shows it."""
    return f"[{host}]" if ":" in host else host


def check_name(name: str) -> None:
    """Refuse what cannot be a replica's name.

    Raises:
        BadRequest: it is empty, too long or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"A replica cannot be called {name[:200]!r}; use letters, digits and . _ - : / [ ], "
            "at most 128.",
            param="name",
        )


def plain_http(text: str, default_port: int) -> tuple[str, int]:
    """Split `host`, `host:port` or `[ipv6]:port`.

    Args:
        text: what the configuration names.
        default_port: if it names none.

    Raises:
        ConfigError: it is none of these.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", text)
    if match is None or not 0 < int(match[3] or default_port) < 65536:
        raise ConfigError(
            f"{text!r} is not a name with a port; write e.g. vllm.default.svc:8000. "
            "Engines found by name are asked in plain http.",
            param="dns",
        )
    return match[1] or match[2], int(match[3] or default_port)
