"""Addresses to listen on, and URLs of engines, as people write them."""

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from headstart.errors import ConfigError

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A host to bind and its port.

    Attributes:
        host: name or IP address, without brackets.
        port: 0 lets the system choose.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach it."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may point anywhere

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host:port`, `[ipv6]:port`, or a port alone, which is on 127.0.0.1.

    Raises:
        ConfigError: it is none of these.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    elif host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ipv6(host):
            raise ConfigError(f"`{text}` is not an address: [{host}] is no IPv6 address")
    elif ":" in host:
        raise ConfigError(f"`{text}` is not an address: write IPv6 as [::1]:8080")
    if not host or any(character in host for character in " /@"):
        raise ConfigError(f"`{text}` is not an address: write host:port, e.g. 127.0.0.1:8080")
    return Address(host, parse_port(port_text))


def parse_port(text: str) -> int:
    """Read a port number.

    Raises:
        ConfigError: it is no number in 0..65535.
    """
    if not (text.isascii() and text.isdigit() and int(text) <= _MAX_PORT):
        raise ConfigError(f"`{text}` is not a port: write a number from 0 to {_MAX_PORT}")
    return int(text)


def check_engine_url(url: str) -> str:
    """Return an engine's URL without a trailing slash.

    Raises:
        ConfigError: it has no http(s) scheme or host, or carries credentials, query or fragment.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"`{_without_credentials(url)}` is not a URL: {error}") from error
    if "@" in parts.netloc:
        raise ConfigError(
            f"`{_without_credentials(url)}` carries credentials: "
            "name the variable that holds the key in api_key_env instead"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"`{url}` is not an engine's URL: write http://host:port or https://host")
    if parts.query or parts.fragment or any(c.isspace() for c in url):
        raise ConfigError(f"`{url}` is not an engine's URL: leave out what follows the path")
    return url.rstrip("/").removesuffix("/v1")


def engine_name(url: str) -> str:
    """Name an engine after its place: `host:port`, and the path if there is one."""
    parts = urlsplit(url)
    return parts.netloc + parts.path


def _without_credentials(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if "@" in rest else url


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False
