"""The data port's sockets, bound once and inherited by every worker."""

import socket
from collections.abc import Sequence


def bind_listeners(host: str, port: int) -> list[socket.socket]:
    """Bind a socket for each address of `host`; nobody is answered before a worker listens.

    Args:
        host: name or IP address.
        port: 0 lets the system choose one for all of them.

    Raises:
        OSError: there is no such host, or the port cannot be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            if listeners and port == 0:
                address = (address[0], bound_port(listeners), *address[2:])
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
    except OSError:
        close_listeners(listeners)
        raise
    return listeners


def bound_port(listeners: Sequence[socket.socket]) -> int:
    """Return the port that they share."""
    port: int = listeners[0].getsockname()[1]
    return port


def close_listeners(listeners: Sequence[socket.socket]) -> None:
    """Close this process's hold on them."""
    for listener in listeners:
        listener.close()
