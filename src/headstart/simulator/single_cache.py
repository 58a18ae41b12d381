"""What one cache would find of a trace, its requests taken one after another in their order.

Without times and replicas: the ceiling of what routing can reach (`ideal`), what a cache of a given
size reaches (`lru`), and what the best eviction would (`belady`). Found are the tokens of the
longest leading run of cached blocks; a last block that is not full counts with what is in it.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf

import msgspec

from headstart.kv.pool import BlockPool
from headstart.simulator.trace import Trace, TraceRequest
from headstart.types import BlockHash, TokenId


class CacheHits(msgspec.Struct, frozen=True):
    """What a cache found.

    Attributes:
        input_tokens: of all prompts.
        cached_tokens: of these, found.
    """

    input_tokens: int
    cached_tokens: int

    @property
    def hit_ratio(self) -> float:
        """Cached over input tokens; 0 of an empty trace."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def computed_tokens(self) -> int:
        """Tokens that were not found."""
        return self.input_tokens - self.cached_tokens


def ideal(trace: Trace) -> CacheHits:
    """Return what a cache that never forgets finds. Cost: 0.1 us a block."""
    seen: set[int] = set()
    runs = []
    for request in trace.requests:
        runs.append(_leading_run(request.blocks, seen))
        seen.update(request.blocks)
    return _hits(trace, runs)


def lru(trace: Trace, num_blocks: int) -> CacheHits:
    """Return what the block pool finds, with vLLM's order: least recently used, tails first.

    Of a prompt that is longer than the cache, what fits is kept.

    Args:
        trace: to replay.
        num_blocks: of the cache, >= 1.

    Cost: about 1.5 us a block.
    """
    pool = BlockPool(num_blocks, 1)
    names: dict[int, BlockHash] = {}
    runs = []
    for request in trace.requests:
        numbers = request.blocks[:num_blocks]
        keys = [names.get(number) or _name(number, names) for number in numbers]
        hits = pool.match(keys)
        runs.append(len(hits))
        new = pool.allocate(hits, len(keys) - len(hits))
        assert new is not None, "all is free between requests, and no prompt is longer"
        if new:
            start = len(hits)
            token_ids = [TokenId(number) for number in numbers[start:]]
            pool.store(new, keys[start:], token_ids, parent=keys[start - 1] if start else None)
        pool.free(hits + new)
        pool.take_events()
    return _hits(trace, runs)


def belady(trace: Trace, num_blocks: int) -> CacheHits:
    """Return what is found if what is needed last, or never, goes first: the best that there is.

    A block may also not be kept at all (bypass). Of blocks that are needed next by the same
    request, the deepest goes first, as it is useless without the others.

    Args:
        trace: to replay.
        num_blocks: of the cache, >= 1.

    Cost: about 2 us a block.
    Source: L. Belady, A study of replacement algorithms, IBM Systems Journal 5(2), 1966.
    """
    cache = _Foreseeing(num_blocks)
    runs = []
    for request, next_uses in zip(trace.requests, _next_uses(trace.requests), strict=True):
        runs.append(_leading_run(request.blocks, cache.next_use))
        cache.use(request.blocks, next_uses)
    return _hits(trace, runs)


class _Foreseeing:
    """A cache that knows the future."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self.next_use: dict[int, float] = {}
        self._heap: list[tuple[float, int, int]] = []  # (-next use, -depth, block), some outdated

    def use(self, blocks: Sequence[int], next_uses: Sequence[float]) -> None:
        for depth, (block, next_use) in enumerate(zip(blocks, next_uses, strict=True)):
            if next_use == inf:
                self.next_use.pop(block, None)
                continue
            self.next_use[block] = next_use
            heappush(self._heap, (-next_use, -depth, block))
        while len(self.next_use) > self._num_blocks:
            next_use, _, block = heappop(self._heap)
            if self.next_use.get(block) == -next_use:
                del self.next_use[block]


def _next_uses(requests: Sequence[TraceRequest]) -> list[list[float]]:
    """Return for each block of each request the index of the next request with it."""
    coming: dict[int, float] = {}
    found: list[list[float]] = []
    for index in range(len(requests) - 1, -1, -1):
        blocks = requests[index].blocks
        found.append([coming.get(block, inf) for block in blocks])
        coming.update(dict.fromkeys(blocks, index))
    found.reverse()
    return found


def _name(number: int, names: dict[int, BlockHash]) -> BlockHash:
    name = names[number] = BlockHash(number.to_bytes(16, "big"))
    return name


def _leading_run(blocks: Sequence[int], cached: set[int] | dict[int, float]) -> int:
    for index, block in enumerate(blocks):
        if block not in cached:
            return index
    return len(blocks)


def _hits(trace: Trace, runs: Iterable[int]) -> CacheHits:
    """Count the tokens in so many leading blocks of each request."""
    size = trace.block_tokens
    cached = total = 0
    for request, run in zip(trace.requests, runs, strict=True):
        cached += min(run * size, request.input_tokens)
        total += request.input_tokens
    return CacheHits(total, cached)
