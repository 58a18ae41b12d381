"""Inputs out of inputs: damage that means something to the reader.

A coverage-guided fuzzer sees the Python code's branches, but not those of a parser written in C.
This engine is guided by what a target says of its input instead (the error, the number of
messages …): an input of a new kind joins the seeds.
"""

import random
from collections.abc import Callable, Hashable, Sequence

MAX_BYTES = 600
"""Longest input; what long input does to time and memory is `growth`'s business."""

_MAX_POOL = 4096
_MAX_KINDS = 100_000


class Mutator:
    """Makes inputs from a pool that starts with the seeds.

    Args:
        rng: the only source of chance.
        seeds: at least one.
        tokens: pieces that mean something to the reader.
    """

    def __init__(self, rng: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> None:
        self._rng = rng
        self._pool = list(seeds)
        self._tokens = tokens
        self._kinds: set[Hashable] = set()
        self._operations: tuple[Callable[[bytes], bytes], ...] = (
            self._insert_token,
            self._insert_token,
            self._replace_by_token,
            self._delete,
            self._set_byte,
            self._flip_bit,
            self._copy_within,
            self._move,
            self._cut_off,
            self._splice,
            self._swap_case,
        )

    def next(self) -> bytes:
        """Return a new input of at most `MAX_BYTES`."""
        rng = self._rng
        pool = self._pool
        data = pool[int(rng.random() * len(pool))]
        if rng.random() < 0.03:
            return rng.randbytes(int(rng.random() * 64))
        operations = self._operations
        while True:
            data = operations[int(rng.random() * len(operations))](data)
            if rng.random() < 0.4:
                return data[:MAX_BYTES]

    def note(self, data: bytes, kind: Hashable) -> None:
        """Hear what kind of input `data` was; the first of its kind becomes a seed."""
        if kind in self._kinds or len(self._kinds) >= _MAX_KINDS:
            return
        self._kinds.add(kind)
        if len(self._pool) < _MAX_POOL:
            self._pool.append(data)

    @property
    def num_kinds(self) -> int:
        """Kinds met so far."""
        return len(self._kinds)

    def _span(self, data: bytes) -> tuple[int, int]:
        start = int(self._rng.random() * (len(data) + 1))
        # Short spans more often than long ones.
        size = int(len(data) * self._rng.random() ** 3) + 1
        return start, min(len(data), start + size)

    def _token(self) -> bytes:
        return self._tokens[int(self._rng.random() * len(self._tokens))]

    def _insert_token(self, data: bytes) -> bytes:
        at = int(self._rng.random() * (len(data) + 1))
        return data[:at] + self._token() + data[at:]

    def _replace_by_token(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + self._token() + data[end:]

    def _delete(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[end:]

    def _set_byte(self, data: bytes) -> bytes:
        at = int(self._rng.random() * (len(data) + 1))
        return data[:at] + bytes((int(self._rng.random() * 256),)) + data[at + 1 :]

    def _flip_bit(self, data: bytes) -> bytes:
        if not data:
            return data
        at = int(self._rng.random() * len(data))
        return data[:at] + bytes((data[at] ^ (1 << int(self._rng.random() * 8)),)) + data[at + 1 :]

    def _copy_within(self, data: bytes) -> bytes:
        start, end = self._span(data)
        at = int(self._rng.random() * (len(data) + 1))
        return data[:at] + data[start:end] * (1 + int(self._rng.random() * 3)) + data[at:]

    def _move(self, data: bytes) -> bytes:
        start, end = self._span(data)
        rest = data[:start] + data[end:]
        at = int(self._rng.random() * (len(rest) + 1))
        return rest[:at] + data[start:end] + rest[at:]

    def _cut_off(self, data: bytes) -> bytes:
        return data[: int(self._rng.random() * (len(data) + 1))]

    def _splice(self, data: bytes) -> bytes:
        other = self._pool[int(self._rng.random() * len(self._pool))]
        at = int(self._rng.random() * (len(data) + 1))
        return data[:at] + other[int(self._rng.random() * (len(other) + 1)) :]

    def _swap_case(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[start:end].swapcase() + data[end:]
