"""How many hold on to each key: counts without zeros."""

from collections.abc import Iterable

from headstart.types import PrefixKey


def add_each(counts: dict[PrefixKey, int], keys: Iterable[PrefixKey]) -> None:
    """Count each of `keys` once more."""
    for key in keys:
        counts[key] = counts.get(key, 0) + 1


def take_each(counts: dict[PrefixKey, int], keys: Iterable[PrefixKey]) -> None:
    """Count each of `keys`, which were counted, once less."""
    for key in keys:
        left = counts[key] - 1
        if left:
            counts[key] = left
        else:
            del counts[key]
