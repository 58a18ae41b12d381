"""A replay under way, and the live batches that wait for its end."""

from collections import deque
from enum import Enum

import msgspec


class Purpose(Enum):
    """What a replay is for."""

    BUILD = "build"
    """Everything that the publisher still has, into an empty index."""
    FILL = "fill"
    """What came after the batches applied so far; live ones are held back meanwhile."""
    PROBE = "probe"
    """Whether there is anything like that; live ones are applied meanwhile."""


class Replay(msgspec.Struct):
    """A replay under way.

    Attributes:
        purpose: what it is for.
        proof_seq: number of the batch that must come back unchanged; None if none was applied.
        proof: that batch.
        num_batches_before: applied when it was asked for.
        is_proved: the publisher is the one that we know.
        is_broken: a batch is missing inside it, or it comes from another publisher.
        num_live: live batches since it was asked for.
    """

    purpose: Purpose
    proof_seq: int | None
    proof: bytes
    num_batches_before: int
    is_proved: bool
    is_broken: bool = False
    num_live: int = 0

    @property
    def start(self) -> int:
        """The number that the publisher is asked to begin with."""
        return 0 if self.proof_seq is None else self.proof_seq

    @property
    def holds_back(self) -> bool:
        """Live batches wait for its end."""
        return self.purpose is not Purpose.PROBE


class HeldBack:
    """Live batches in the order in which they came; bounded in bytes.

    Args:
        max_bytes: of payloads, >= 0.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._batches: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first_seq(self) -> int:
        """Number of the oldest; there is one."""
        return self._batches[0][0]

    def add(self, seq: int, payload: bytes) -> bool:
        """Keep a batch; False, and it is not kept, where there is no room."""
        if self._num_bytes + len(payload) > self._max_bytes:
            return False
        self._batches.append((seq, payload))
        self._num_bytes += len(payload)
        return True

    def pop(self) -> tuple[int, bytes]:
        """Take the oldest out; there is one."""
        seq, payload = self._batches.popleft()
        self._num_bytes -= len(payload)
        return seq, payload

    def clear(self) -> None:
        """Drop all."""
        self._batches.clear()
        self._num_bytes = 0

    def check_integrity(self) -> None:
        """Assert that the count of bytes is right and bounded."""
        assert self._num_bytes == sum(len(payload) for _, payload in self._batches)
        assert self._num_bytes <= self._max_bytes
