"""Where a stream of batches stands: what was applied last, what comes next."""

from collections.abc import Collection
from typing import Final

import xxhash

from headstart.prefix.stream_step import StreamFault
from headstart.wire.kv_events import (
    ClearedBlocks,
    KvEventBatch,
    KvEventDecodeError,
    UnknownKvEventError,
    decode_batch,
)

MAX_REPLAY_DIGESTS: Final = 2048
"""Replayed batches with which a live copy that arrives later is compared."""

_MAX_UNKNOWN_KINDS: Final = 64


class Cursor:
    """A position in one publisher's numbering.

    Attributes:
        next: number of the batch that comes next; None before the first.
        last_payload: of the batch before.
        is_whole: all that the publisher's cache holds was told in batches that were applied.
        num_batches: applied so far.
    """

    def __init__(self) -> None:
        self.next: int | None = None
        self.last_payload = b""
        self.is_whole = False
        self.num_batches = 0
        self._replay_digests: dict[int, int] = {}
        self._unknown_kinds: set[str] = set()

    def begin_at(self, seq: int) -> None:
        """Take `seq` as the next number; a publisher's first is 0."""
        self.next = seq
        self.is_whole = seq == 0

    def reset(self) -> None:
        """Forget the position."""
        self.next = None
        self.last_payload = b""
        self.is_whole = False
        self._replay_digests.clear()

    def apply(self, seq: int, payload: bytes) -> tuple[KvEventBatch | None, StreamFault | None]:
        """Go past the next batch; return it, and what is wrong with it.

        Without a batch it could not be read, and what it removed is unknown.
        """
        fault: StreamFault | None = None
        try:
            batch = decode_batch(payload)
        except UnknownKvEventError as exc:
            batch = exc.batch
            if self._is_new(exc.kinds):
                fault = StreamFault.UNKNOWN_EVENT
        except KvEventDecodeError:
            self.reset()
            self.next, self.last_payload = seq + 1, payload
            return None, StreamFault.UNDECODABLE
        self.next, self.last_payload = seq + 1, payload
        self.num_batches += 1
        if not self.is_whole:
            self.is_whole = any(type(event) is ClearedBlocks for event in batch.events)
        return batch, fault

    def remember_replayed(self, seq: int, payload: bytes) -> None:
        """Keep the digest of a replayed batch for `is_copy`."""
        if len(self._replay_digests) >= MAX_REPLAY_DIGESTS:
            del self._replay_digests[next(iter(self._replay_digests))]
        self._replay_digests[seq] = xxhash.xxh3_64_intdigest(payload)

    def is_copy(self, seq: int, payload: bytes) -> bool:
        """Whether a live batch is one that was replayed, as far as that is remembered."""
        digest = self._replay_digests.pop(seq, None)
        return digest is None or digest == xxhash.xxh3_64_intdigest(payload)

    def check_integrity(self) -> None:
        """Assert the bounds, and that what is whole has a position."""
        assert len(self._replay_digests) <= MAX_REPLAY_DIGESTS
        assert len(self._unknown_kinds) <= _MAX_UNKNOWN_KINDS
        assert not self.is_whole or self.next is not None

    def _is_new(self, kinds: Collection[str]) -> bool:
        new = set(kinds) - self._unknown_kinds
        self._unknown_kinds.update(sorted(new)[: _MAX_UNKNOWN_KINDS - len(self._unknown_kinds)])
        return bool(new)
