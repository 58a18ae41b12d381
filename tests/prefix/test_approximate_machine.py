"""`ApproximateIndex` against a naive twin: sets of paths, scanned."""

from approximate_prompts import block_bytes, key_of, prompt_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headstart.prefix.approximate import ApproximateIndex
from headstart.prefix.config import PrefixConfig
from headstart.prefix.entries import SIZE_UNIT_BYTES

SPECULATIVE_S = 3.0
NUM_SLOTS = 3
MAX_OPEN = 6
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
SLOTS = st.integers(0, NUM_SLOTS - 1)


class NaiveReplica:
    """Which paths it holds, whether they are warm, and its ends, oldest first."""

    def __init__(self, capacity, max_entries):
        self.capacity = capacity
        self.max_entries = max_entries
        self.warm = {}
        self.ends = {}

    def has_too_many(self):
        return len(self.warm) > self.max_entries

    def is_too_large(self):
        return self.size() > self.capacity or self.has_too_many()

    def size(self):
        return sum(block_bytes(path) // SIZE_UNIT_BYTES for path in self.warm)

    def goes_on(self, path):
        return any(other[:-1] == path for other in self.warm)

    def use(self, path, now, *, is_warm):
        for depth in range(1, len(path) + 1):
            self.warm[path[:depth]] = self.warm.get(path[:depth], False) or is_warm
        self.ends.pop(path, None)
        self.ends[path] = now
        while self.has_too_many():
            self.drop_oldest(self.has_too_many)

    def make_room(self):
        while self.is_too_large():
            self.drop_oldest(self.is_too_large)

    def drop_oldest(self, is_wanted):
        path, touched = next(iter(self.ends.items()))
        del self.ends[path]
        while path and not self.goes_on(path):
            del self.warm[path]
            path = path[:-1]
            if not path or path in self.ends:
                return
            if not is_wanted():
                if not self.goes_on(path):
                    self.ends = {path: touched, **self.ends}
                return

    def drop_promise(self, path, sent_at, now):
        while path in self.warm and not self.goes_on(path):
            if self.warm[path] or self.ends.get(path, sent_at) > sent_at:
                self.ends.setdefault(path, now)
                return
            self.ends.pop(path, None)
            del self.warm[path]
            path = path[:-1]

    def deepest_warm(self, path):
        depth = len(path)
        while depth and not self.warm.get(path[:depth], False):
            depth -= 1
        return path[:depth]


class ApproximateMachine(RuleBasedStateMachine):
    """Everything that can happen to the index, over one small tree of prompts."""

    @initialize(
        capacity=st.integers(2, 60),
        max_entries=st.integers(2, 30),
        ttl_s=st.sampled_from([None, 7.0]),
    )
    def begin(self, capacity, max_entries, ttl_s):
        config = PrefixConfig(
            speculative_s=SPECULATIVE_S, max_entries=max_entries, ttl_s=ttl_s, max_open=MAX_OPEN
        )
        self.index = ApproximateIndex(config)
        self.capacity, self.max_entries, self.ttl_s = capacity, max_entries, ttl_s
        self.now = 0.0
        self.promises = []
        self.twins = {}
        for slot in range(NUM_SLOTS):
            self.add(slot)

    def add(self, slot):
        self.index.add_replica(slot, self.capacity * SIZE_UNIT_BYTES)
        self.twins[slot] = NaiveReplica(self.capacity, self.max_entries)

    def expire(self):
        while self.promises and self.promises[0][0] <= self.now:
            self.drop_promise()
        if self.ttl_s is not None:
            for twin in self.twins.values():
                while twin.ends and next(iter(twin.ends.values())) <= self.now - self.ttl_s:
                    twin.drop_oldest(lambda: True)

    def drop_promise(self):
        _deadline, slot, path, sent_at = self.promises.pop(0)
        self.twins[slot].drop_promise(path, sent_at, self.now)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(slot=SLOTS, path=PATHS)
    def promise(self, slot, path):
        self.expire()
        twin = self.twins[slot]
        depth = sum(path[:depth] in twin.warm for depth in range(1, len(path) + 1))
        warm_depth = len(twin.deepest_warm(path))
        standing = self.index.promise(slot, prompt_of(*path), self.now, 0.25)
        assert (standing.depth, standing.warm_depth) == (depth, warm_depth)
        assert standing.end_touched == (twin.ends.get(path[:depth]) if depth else None)
        twin.use(path, self.now, is_warm=False)
        if warm_depth < len(path):
            self.promises.append((self.now + SPECULATIVE_S, slot, path, self.now))
            if len(self.promises) > MAX_OPEN:
                self.drop_promise()

    @rule(slot=SLOTS, path=PATHS)
    def confirm(self, slot, path):
        twin = self.twins[slot]
        before = twin.deepest_warm(path)
        if before != path:
            twin.ends.pop(before, None)
        self.index.confirm(slot, prompt_of(*path), self.now, 0.25)
        twin.use(path, self.now, is_warm=True)

    @rule(slot=SLOTS)
    def make_room(self, slot):
        self.index.holdings(slot).make_room()
        self.twins[slot].make_room()

    @rule(slot=SLOTS, path=PATHS)
    def withdraw(self, slot, path):
        self.index.withdraw(slot, prompt_of(*path), self.now)
        self.twins[slot].drop_promise(path, float("inf"), self.now)

    @rule(slot=SLOTS, ago=st.integers(0, 5))
    def forget(self, slot, ago):
        twin = self.twins[slot]
        self.index.holdings(slot).forget_until(self.now - ago)
        while twin.ends and next(iter(twin.ends.values())) <= self.now - ago:
            twin.drop_oldest(lambda: True)

    @rule(slot=SLOTS)
    def clear(self, slot):
        self.index.clear(slot)
        twin = self.twins[slot]
        twin.warm, twin.ends = {}, {}

    @rule(slot=SLOTS)
    def replace(self, slot):
        self.index.remove_replica(slot)
        self.add(slot)

    @rule(slot=SLOTS, capacity=st.integers(0, 60))
    def resize(self, slot, capacity):
        self.index.set_capacity(slot, capacity * SIZE_UNIT_BYTES)
        self.twins[slot].capacity = capacity

    @precondition(lambda self: self.twins)
    @rule(path=PATHS, slots=st.lists(SLOTS, unique=True, min_size=1))
    def match(self, path, slots):
        self.expire()
        expected = [
            sum(path[:depth] in self.twins[slot].warm for depth in range(1, len(path) + 1))
            for slot in slots
        ]
        assert self.index.match(prompt_of(*path).keys, slots, self.now) == expected

    @invariant()
    def agrees(self):
        if not hasattr(self, "twins"):
            return
        self.index.check_integrity()
        assert self.index.num_promises == len(self.promises)
        paths = {path for twin in self.twins.values() for path in twin.warm}
        assert self.index.entries.keys() == {key_of(path) for path in paths}
        for slot, twin in self.twins.items():
            held = self.index.holdings(slot)
            for path in paths:
                entry = self.index.entries[key_of(path)]
                assert bool(entry.held & held.bit) == (path in twin.warm)
                assert bool(entry.warm & held.bit) == twin.warm.get(path, False)
            assert held.size == twin.size()
            assert [(key, end.touched) for key, end in held.ends.items()] == [
                (key_of(path), touched) for path, touched in twin.ends.items()
            ]


TestApproximateMachine = ApproximateMachine.TestCase
TestApproximateMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
