"""Who else hears of what the router sends: other gateways, so far."""

from typing import Protocol

from headstart.routing.dispatch import Dispatch


class DispatchObserver(Protocol):
    """Hears of every attempt, on the request's path: each call only notes the dispatch.

    The router calls it once it has taken the event in itself, so that what the dispatch and its
    replica's load say is already true. The order for one dispatch is `sent`, `first_token` at most
    once, `answered` at most once, `ended` exactly once.
    """

    def sent(self, dispatch: Dispatch) -> None:
        """Hear that a request goes to `dispatch.replica`."""
        ...

    def first_token(self, dispatch: Dispatch) -> None:
        """Hear that its prefill is over."""
        ...

    def answered(self, dispatch: Dispatch) -> None:
        """Hear that the engine has answered in full; what it reported is in the dispatch."""
        ...

    def ended(self, dispatch: Dispatch) -> None:
        """Hear that nothing more comes, whatever the reason."""
        ...
