"""A table bounded in bytes, against a naive twin."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.prompt.lru_table import ENTRY_BYTES, LruTable

MAX_BYTES = 4 * ENTRY_BYTES
KEYS = st.integers(0, 7).map(lambda i: bytes([i]))


class TableMachine(RuleBasedStateMachine):
    """The twin is a list, the least recently used first."""

    def __init__(self):
        super().__init__()
        self.table = LruTable(MAX_BYTES)
        self.twin = []

    def find(self, key):
        return next((entry for entry in self.twin if entry[0] == key), None)

    def use(self, entry):
        self.twin.remove(entry)
        self.twin.append(entry)

    @rule(key=KEYS, value=st.integers(), size=st.integers(0, MAX_BYTES))
    def put(self, key, value, size):
        old = self.find(key)
        if old is not None:
            self.twin.remove(old)
        self.twin.append((key, value, ENTRY_BYTES + size))
        while sum(entry[2] for entry in self.twin) > MAX_BYTES:
            del self.twin[0]
        self.table.put(key, value, size)

    @rule(key=KEYS)
    def look_up(self, key):
        entry = self.find(key)
        assert self.table.get(key) == (None if entry is None else entry[1])
        if entry is not None:
            self.use(entry)

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def look_up_a_path(self, keys):
        found = []
        for key in keys:
            entry = self.find(key)
            if entry is None:
                break
            found.append(entry)
        assert self.table.leading(keys) == [entry[1] for entry in found]

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def use_a_path(self, keys):
        self.table.use(keys)
        for key in reversed(keys):
            entry = self.find(key)
            if entry is not None:
                self.use(entry)

    @rule()
    def clear(self):
        self.twin.clear()
        self.table.clear()

    @invariant()
    def agrees(self):
        self.table.check_integrity()
        statistics = self.table.statistics()
        assert statistics.num_entries == len(self.twin)
        assert statistics.num_bytes == sum(entry[2] for entry in self.twin)


TestLruTable = TableMachine.TestCase
TestLruTable.__doc__ = "Forgets what was used longest ago, and keeps within its bytes."
