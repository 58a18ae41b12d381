"""What replicas hold, as far as it follows from what was sent to them.

Theory of operation: a prompt is a chain of blocks (`prompt.fingerprint`), and a replica holds a
chain from its first block up to some depth. One dictionary maps the key of a block to a mask of
the replicas that hold it. Since nobody holds a block without those before it, the mask only loses
bits along a chain, and where each bit is lost is found by bisection.

Recency is a matter of ends. Using a prompt uses all blocks of it, so a block was used when the
latest prompt through it was; it is enough to note for every replica where prompts end, in order of
last use. What is dropped first is the end that was not used for longest, from its last block
backwards, up to a block through which another prompt goes: the order in which vLLM and SGLang
evict, at O(1) per request instead of per block. A block whose last successor goes takes its place
in the order, if it is no end itself.

    dispatched   blocks are promised: held, for a few seconds
    answered     they are warm: held until dropped
    failed, or no answer in time: promised blocks that nothing else stands on are dropped

What it does not do: it knows of bytes only (tokens are `prefix.token_counts`), and it never asks
whether it was right (`prefix.calibration`).

Cost: look-up O(log(blocks) · different depths); the rest O(1) per request, and per block that is
new or dropped. Memory: about 0.2 KB per block held by one replica, next to nothing for others.
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

import msgspec

from headstart.prefix.config import PrefixConfig
from headstart.prefix.entries import SIZE_UNIT_BYTES, Entry, Standing
from headstart.prefix.holdings import Holdings
from headstart.prompt.fingerprint import PromptKeys
from headstart.types import PrefixKey

_FEW: Final = 4
"""Of so many bits each is looked for by itself."""

_SHORT: Final = 6
"""A prompt of so many blocks is looked up block by block, which is quicker than bisection."""


class ApproximateStatistics(msgspec.Struct, frozen=True):
    """Sizes of the index, of one replica's part or of all.

    Attributes:
        num_entries: blocks held.
        num_bytes: of prompt in them, in round figures.
        capacity_bytes: its bound.
        num_ends: prompts that end somewhere.
        num_evicted: blocks dropped for room, ever.
    """

    num_entries: int
    num_bytes: int
    capacity_bytes: int
    num_ends: int
    num_evicted: int


class ApproximateIndex:
    """See the module's text. Not thread-safe; `now` must not go back.

    Attributes:
        entries: all blocks; others may read them, and change their `tokens`.
    """

    def __init__(self, config: PrefixConfig) -> None:
        self.entries: dict[PrefixKey, Entry] = {}
        self._config = config
        self._slots: dict[int, Holdings] = {}
        self._promises: deque[tuple[float, int, PrefixKey, float]] = deque()
        self._next_deadline = inf
        self._has_ttl = False  # of any replica
        self._last_slots: Sequence[int] = ()
        self._last_positions: dict[int, int] = {}
        self._last_mask = 0
        self._last_keys: Sequence[PrefixKey] = ()
        self._last_depths: Sequence[int] = (0,)

    @property
    def num_promises(self) -> int:
        """Dispatches remembered until they are answered for or out of date."""
        return len(self._promises)

    def add_replica(self, slot: int, capacity_bytes: int) -> None:
        """Begin with an empty replica.

        Args:
            slot: >= 0, of no replica that there is.
            capacity_bytes: of prompt.
        """
        assert slot not in self._slots, "the slot is taken"
        config = self._config
        self._slots[slot] = Holdings(
            self.entries, slot, capacity_bytes // SIZE_UNIT_BYTES, config.max_entries, config.ttl_s
        )
        self._find_ttl()

    def remove_replica(self, slot: int) -> None:
        """Forget a replica. Cost: O(its blocks)."""
        self._slots.pop(slot).clear()
        self._find_ttl()

    def clear(self, slot: int) -> None:
        """Drop everything that a replica holds. Cost: O(its blocks)."""
        self._slots[slot].clear()

    def set_capacity(self, slot: int, capacity_bytes: int) -> None:
        """Bound a replica, from `Holdings.make_room` on."""
        self._slots[slot].capacity = capacity_bytes // SIZE_UNIT_BYTES

    def set_ttl(self, slot: int, ttl_s: float | None) -> None:
        """Drop what is not used for so long from now on; None: nothing."""
        self._slots[slot].ttl_s = ttl_s
        self._find_ttl()
        self._next_deadline = -inf  # to be found anew

    def holdings(self, slot: int) -> Holdings:
        """Return a replica's part."""
        return self._slots[slot]

    def match(self, keys: Sequence[PrefixKey], slots: Sequence[int], now: float) -> list[int]:
        """Return how many leading blocks of `keys` each of `slots` holds.

        Cost: about a microsecond for each different depth.
        """
        if not keys:
            return [0] * len(slots)
        if now >= self._next_deadline:
            self.expire(now)
        if slots != self._last_slots:
            self._remember(slots)
        depths = self._step(keys) if len(keys) <= _SHORT else self._bisect(keys)
        self._last_keys, self._last_depths = keys, depths[:]
        return depths

    def known_depth(self, keys: Sequence[PrefixKey]) -> int:
        """Return how many leading blocks of `keys` somebody holds.

        Of keys that were just looked up it is told without looking, as far as those hold them that
        were asked for.
        """
        entries = self.entries
        if keys is self._last_keys:
            deepest = max(self._last_depths)
            if not deepest or keys[deepest - 1] in entries:
                return deepest
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] in entries:
                low = middle + 1
            else:
                high = middle
        return low

    def promise(
        self, slot: int, prompt: PromptKeys, now: float, tokens_per_byte: float
    ) -> Standing:
        """Note that a prompt was sent to a replica; returns what that held before.

        Args:
            slot: of the replica.
            prompt: with at least one key.
            now: monotonic seconds.
            tokens_per_byte: to guess tokens of new blocks by.
        """
        if now >= self._next_deadline:
            self.expire(now)
        held, keys = self._slots[slot], prompt.keys
        num_keys, last = len(keys), keys[-1]
        entry = self.entries.get(last)
        if entry is not None and entry.warm & held.bit:
            depth = warm_depth = num_keys
        else:
            depth = warm_depth = held.depth(keys, self._guess(held.bit, keys))
            if depth and not self.entries[keys[depth - 1]].warm & held.bit:
                warm_depth = held.warm_depth(keys, depth - 1)
        standing = Standing(prompt, now, held.clock, depth, warm_depth)
        if depth:
            self._describe(standing, held)
        if depth < num_keys:
            held.add(prompt, depth, 0, tokens_per_byte)
        held.touch(keys[0], last, now)
        if held.ttl_s is not None:
            self._note_use(held.ttl_s, now)
        if warm_depth < num_keys:
            self._remember_promise(slot, last, now)
        self._last_keys = ()
        return standing

    def confirm(self, slot: int, prompt: PromptKeys, now: float, tokens_per_byte: float) -> None:
        """Note that a replica's engine has computed a prompt; arguments as for `promise`."""
        held, keys = self._slots[slot], prompt.keys
        last = keys[-1]
        entry = self.entries.get(last)
        if entry is None or not entry.warm & held.bit:
            is_promised = entry is not None and entry.held & held.bit
            depth = len(keys) if is_promised else held.depth(keys)
            held.warm(keys, depth)
            if depth < len(keys):
                held.add(prompt, depth, held.bit, tokens_per_byte)
        held.touch(keys[0], last, now)
        if held.ttl_s is not None:
            self._note_use(held.ttl_s, now)

    def resize(self, prompt: PromptKeys, tokens_per_byte: float) -> None:
        """Let the blocks of a prompt take no more room than text of as many tokens would.

        Images are written as far more bytes than they are tokens.

        Cost: O(blocks · who holds them).
        """
        before = 0
        for key in prompt.keys:
            entry = self.entries.get(key)
            if entry is None:
                return
            tokens = entry.tokens >> 2
            size = int(max(tokens - before, 0) / tokens_per_byte) // SIZE_UNIT_BYTES
            before = tokens
            if size < entry.size:
                for held in self._slots.values():
                    if entry.held & held.bit:
                        held.resize(entry, size)
                entry.size = size

    def withdraw(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Note that a prompt sent to a replica was not computed; arguments as for `promise`."""
        self._slots[slot].drop_promise(prompt.keys[-1], inf, now)

    def expire(self, now: float) -> None:
        """Drop promises that were not kept, and what was not used for its time to live."""
        promises = self._promises
        while promises and promises[0][0] <= now:
            self._drop_oldest_promise(now)
        deadline = promises[0][0] if promises else inf
        if self._has_ttl:
            for held in self._slots.values():
                if held.ttl_s is not None:
                    held.forget_until(now - held.ttl_s)
                    oldest = held.oldest()
                    if oldest is not None:
                        deadline = min(deadline, oldest + held.ttl_s)
        self._next_deadline = deadline

    def statistics(self, slot: int) -> ApproximateStatistics:
        """Return the sizes of a replica's part."""
        held = self._slots[slot]
        return ApproximateStatistics(
            num_entries=held.num_entries,
            num_bytes=held.size * SIZE_UNIT_BYTES,
            capacity_bytes=held.capacity * SIZE_UNIT_BYTES,
            num_ends=len(held.ends),
            num_evicted=held.num_evicted,
        )

    def check_integrity(self) -> None:
        """Assert every invariant. Cost: O(blocks · replicas); for tests."""
        everybody = sum(held.bit for held in self._slots.values())
        for entry in self.entries.values():
            assert entry.held
            assert not entry.held & ~everybody
            assert entry.held | entry.warm | entry.inner == entry.held
            if entry.parent is not None:
                parent = self.entries[entry.parent]
                assert parent.inner & entry.held == entry.held, "held without what is before it"
                assert parent.warm & entry.warm == entry.warm
        for held in self._slots.values():
            held.check_integrity()
        assert len(self._promises) <= self._config.max_open
        assert not self._promises or self._next_deadline <= self._promises[0][0]

    def _describe(self, standing: Standing, held: Holdings) -> None:
        keys, entries = standing.prompt.keys, self.entries
        depth, warm_depth = standing.depth, standing.warm_depth
        key = keys[depth - 1]
        entry = entries[key]
        standing.tokens = standing.warm_tokens = entry.tokens >> 2
        if warm_depth < depth:
            standing.warm_tokens = entries[keys[warm_depth - 1]].tokens >> 2 if warm_depth else 0
        standing.root = held.roots[keys[0]]
        end = held.ends.get(key)
        if end is not None:
            standing.end_touched = end.touched
            if not entry.inner & held.bit:  # else what followed is known, and it was not ours
                standing.extra_tokens = end.extra_tokens

    def _step(self, keys: Sequence[PrefixKey]) -> list[int]:
        """Look each key up until nobody holds one."""
        get, level, depth = self.entries.get, self._last_mask, 0
        depths = [0] * len(self._last_slots)
        for key in keys:
            entry = get(key)
            held = 0 if entry is None else entry.held & level
            if held != level:
                if depth:
                    self._set_depth(depths, level ^ held, depth)
                level = held
                if not level:
                    return depths
            depth += 1
        self._set_depth(depths, level, depth)
        return depths

    def _bisect(self, keys: Sequence[PrefixKey]) -> list[int]:
        """Find where each bit is lost by halving."""
        get, everybody = self.entries.get, self._last_mask
        depths = [0] * len(self._last_slots)
        entry = get(keys[0])
        level = 0 if entry is None else entry.held & everybody
        low = 0
        probes = [(len(keys), 0)]  # after `low`, furthest first: positions, and who holds them
        while level:
            # `level` are those that hold keys[low]; find the first key that they do not all hold.
            high, held = probes[-1]
            while high - low > 1:
                middle = (low + high) >> 1
                entry = get(keys[middle])
                held = 0 if entry is None else entry.held & level
                if held == level:
                    low = middle
                else:
                    high = middle
                    probes.append((middle, held))
            low, held = probes.pop()
            rest = held & level
            if level == everybody and not rest:
                depths = [low] * len(depths)
                break
            self._set_depth(depths, level ^ rest, low)
            level = rest
            while level and probes[-1][1] & level == level:
                low = probes.pop()[0]
        return depths

    def _remember(self, slots: Sequence[int]) -> None:
        # Requests mostly come with the same candidates.
        self._last_slots = slots[:]
        self._last_positions = {1 << slot: at for at, slot in enumerate(slots)}
        self._last_mask = sum(self._last_positions)

    def _guess(self, bit: int, keys: Sequence[PrefixKey]) -> int:
        """Return how deep a replica held `keys` when they were looked up, mostly a moment ago."""
        if keys is not self._last_keys:
            return 0
        at = self._last_positions.get(bit)
        return 0 if at is None else self._last_depths[at]

    def _set_depth(self, depths: list[int], lost: int, depth: int) -> None:
        positions = self._last_positions
        if lost.bit_count() > _FEW:
            for bit, at in positions.items():
                if lost & bit:
                    depths[at] = depth
            return
        while lost:
            bit = lost & -lost
            depths[positions[bit]] = depth
            lost ^= bit

    def _find_ttl(self) -> None:
        self._has_ttl = any(held.ttl_s is not None for held in self._slots.values())

    def _note_use(self, ttl_s: float, now: float) -> None:
        self._next_deadline = min(self._next_deadline, now + ttl_s)

    def _remember_promise(self, slot: int, last: PrefixKey, now: float) -> None:
        deadline = now + self._config.speculative_s
        self._promises.append((deadline, slot, last, now))
        if deadline < self._next_deadline:
            self._next_deadline = deadline
        if len(self._promises) > self._config.max_open:
            self._drop_oldest_promise(now)

    def _drop_oldest_promise(self, now: float) -> None:
        _deadline, slot, last, sent_at = self._promises.popleft()
        held = self._slots.get(slot)
        if held is None:
            return
        end = held.ends.get(last)
        if end is None or end.touched <= sent_at:  # else it was kept, as nearly all are
            held.drop_promise(last, sent_at, now)
