"""One engine process with its own KV cache, as the router sees it."""


class Replica:
    """Load and availability of one replica; the router's only mutable state about it.

    Attributes:
        name: unique within the gateway.
        models: names it serves; empty until its engine has said.
        in_flight: requests sent to it that are not finished.
        in_flight_bytes: their prompt bytes, a stand-in for assigned tokens.
        is_available: it may be chosen now.
    """

    __slots__ = ("in_flight", "in_flight_bytes", "is_available", "models", "name")

    def __init__(self, name: str, models: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.models = models
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.is_available = True

    def begin(self, prompt_bytes: int) -> None:
        """Count a request in."""
        self.in_flight += 1
        self.in_flight_bytes += prompt_bytes

    def end(self, prompt_bytes: int) -> None:
        """Count the same request out; `prompt_bytes` as given to `begin`."""
        self.in_flight -= 1
        self.in_flight_bytes -= prompt_bytes
        assert self.in_flight >= 0
        assert self.in_flight_bytes >= 0

    def __repr__(self) -> str:
        return f"Replica({self.name!r}, in_flight={self.in_flight})"
