"""Where an engine is, and the fixed part of every request to it."""

import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headstart.engines.base import ReplicaConfig
from headstart.errors import ConfigError
from headstart.wire.http1 import (
    CONNECTION_FIELDS,
    Request,
    request_head,
)

# Expect is answered by the gateway, which has the whole body before it sends any of it.
# The receipt is asked of this gateway and of no other behind it.
_REPLACED: Final = CONNECTION_FIELDS | {
    b"host",
    b"accept-encoding",
    b"expect",
    b"x-headstart-priority",
    b"x-headstart-receipt",
}
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})
_USER_INFO: Final = re.compile(r"//[^/]*@")  # may be a secret, which no message shows


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed engine URL.

    Attributes:
        host: name or IP address, without brackets.
        port: TCP port.
        path: prefix for every target; empty or starting with a slash, never ending in one.
        is_tls: `https`.
    """

    host: str
    port: int
    path: str
    is_tls: bool

    def authority(self) -> str:
        """Return `host:port` for the Host field; the scheme's default port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.is_tls else 80
        return host if self.port == default else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parse an engine's URL; a final `/v1`, as client libraries want it, is dropped.

    Raises:
        ConfigError: not an http(s) URL with a host, or one that carries credentials.
    """
    shown = _USER_INFO.sub("//...@", url)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(
            f"The engine URL {shown!r} must be plain ASCII without spaces; write a name in its "
            "`xn--` form and escape a path with `%`.",
            param="url",
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise ConfigError(f"The engine URL {shown!r} is not a URL: {exc}.", param="url") from exc
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            f"The engine URL {shown!r} must look like http://host:port or https://host.",
            param="url",
        )
    if parts.username or parts.password:
        raise ConfigError(
            f"The URL of the engine at {host} must not contain credentials; use api_key_env.",
            param="url",
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"The engine URL {shown!r} must end with its path.", param="url")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(host, port or (443 if is_tls else 80), path, is_tls)


class Origin:
    """One engine as the target of requests: its address, its TLS and its own header fields.

    Args:
        config: the replica.
        strips_credentials: the client's key never goes upstream.

    Raises:
        ConfigError: the URL or the CA file cannot be used.
    """

    __slots__ = ("_drop", "_fixed_lines", "_prefix", "address", "name", "tls", "url")

    def __init__(self, config: ReplicaConfig, *, strips_credentials: bool) -> None:
        self.name = config.name
        self.url = config.url
        self.address = parse_address(config.url)
        self.tls = _tls_context(config.ca_file) if self.address.is_tls else None
        self._prefix = self.address.path.encode("ascii", "strict") if self.address.path else b""
        drops = strips_credentials or config.api_key is not None
        self._drop = _REPLACED | _CREDENTIALS if drops else _REPLACED
        self._fixed_lines = _fixed_lines(config, self.address)

    def head(self, request: Request, num_body_bytes: int) -> bytes:
        """Return the head to send for `request`.

        Args:
            request: the client's; what belongs to its connection or is ours to say is replaced.
            num_body_bytes: 0 sends a Content-Length only where the method wants one.
        """
        lines = request.header.forwarded(self._drop) + self._fixed_lines
        method = request.method
        has_length = num_body_bytes > 0 or method in _BODY_METHODS
        target = self._prefix + request.target if self._prefix else request.target
        return request_head(method, target, lines, num_body_bytes if has_length else None)


def _fixed_lines(config: ReplicaConfig, address: Address) -> bytes:
    # identity: usage must be readable, and official clients ask for gzip. Via: RFC 9110 §7.6.3.
    lines = [f"host: {address.authority()}", "accept-encoding: identity", "via: 1.1 headstart"]
    if config.api_key is not None:
        if not config.api_key.isascii() or not config.api_key.isprintable():
            raise ConfigError(f"The API key of engine {config.name!r} has unprintable characters.")
        if config.kind == "anthropic":
            lines.append(f"x-api-key: {config.api_key}")
        else:
            lines.append(f"authorization: Bearer {config.api_key}")
    return "".join(line + "\r\n" for line in lines).encode("ascii")


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"The CA file {ca_file!r} cannot be used: {exc}.", param="ca_file"
        ) from exc
    context.set_alpn_protocols(["http/1.1"])
    return context
