"""What a target is, and what targets share: cutting, strict JSON, weighing."""

import json
import math
import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Target:
    """A reader of hostile bytes and what must hold of it.

    Attributes:
        name: of its corpus folder.
        check: asserts every property for one input; returns what kind of input it was, by which
            the engine tells whether it has met something new.
        tokens: pieces that mean something to the reader.
        share: of a campaign's cases, relative to the others.
        drive: run the product alone on one long input and return the bytes that it then keeps.
        max_kept_bytes: bound of what `drive` returns.
        is_live: needs sockets; many times slower, and not for guidance by coverage.
    """

    name: str
    check: Callable[[bytes], Hashable]
    tokens: tuple[bytes, ...]
    share: float = 1.0
    drive: Callable[[bytes], int] | None = None
    max_kept_bytes: int = 0
    is_live: bool = False


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut `data` in a way that depends on nothing but `data`, so that a find can be repeated.

    One input in 32 comes byte by byte, or in 128 pieces if it is longer, the others in pieces of
    at most half.
    """
    seed = crc32(data)
    if seed & 31 == 0:
        step = len(data) // 128 + 1
        for at in range(0, len(data), step):
            yield data[at : at + step]
        return
    at = 0
    largest = len(data) // 2 + 1
    while at < len(data):
        seed = (seed * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        size = 1 + (seed >> 8) % largest
        yield data[at : at + size]
        at += size


def strict_json(text: bytes) -> object:
    """Parse JSON as RFC 8259 has it.

    Raises:
        ValueError: it is none, or something that parsers differ on: nested very deeply, or with
            a number that is no finite double.
    """
    try:
        return json.loads(
            text.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is no double")
    return value


def kept_bytes(value: object) -> int:
    """Weigh what an object with slots keeps in bytes objects and in containers of them."""
    if isinstance(value, bytes | bytearray):
        return sys.getsizeof(value)
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(kept_bytes, [*value, *value.values()]))
    if isinstance(value, list | tuple | set):
        return sys.getsizeof(value) + sum(map(kept_bytes, value))
    names = getattr(type(value), "__slots__", ())
    held = [getattr(value, name) for name in names if hasattr(value, name)]
    return sum(kept_bytes(each) for each in held if isinstance(each, _CONTAINERS))


_CONTAINERS = (bytes, bytearray, dict, list, tuple, set)
