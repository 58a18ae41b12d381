"""Where records go: what the recorder asks of a store, a log, or anything else that keeps them."""

from collections.abc import Sequence
from typing import Protocol

from headstart.accounting.record import RequestRecord

_MAX_TEXT = 512
"""Longest text kept of a field that a client chooses (path, model): the rest says nothing."""


class RecordSink(Protocol):
    """Keeps records; may block, because only the recorder's thread for this sink calls it."""

    @property
    def name(self) -> str:
        """A short word for metrics and messages, e.g. `store`."""
        ...

    def write(self, records: Sequence[RequestRecord]) -> None:
        """Keep all of `records`, in order.

        After a failure the recorder calls again with the same records until it succeeds or gives
        them up, so a sink that kept a part of them must not keep that part twice.

        Raises:
            StoreUnavailable: not now; the message says what to do.
        """
        ...

    def close(self) -> None:
        """Release what the sink holds; nothing is written after."""
        ...


def clip_text(text: str) -> str:
    """Shorten a client's text and make it encodable, for a sink that must take anything.

    Half a surrogate pair (JSON can spell one) has no UTF-8 form: SQLite and JSON refuse
    it, and the whole batch with it.
    """
    text = text[:_MAX_TEXT]
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()
