"""The block pool against a naive twin that keeps everything in plain lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headstart.kv.block_table import BlockTable
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored
from headstart.kv.hashing import root_hash
from headstart.kv.pool import BlockPool
from headstart.types import TokenId

SALTS = st.sampled_from([None, "a", "b"])
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class NaiveRequest:
    """A request as the twin sees it: contents instead of hashes, lists instead of links."""

    def __init__(self, salt, token_ids):
        self.salt, self.tokens, self.blocks, self.computed = salt, list(token_ids), [], 0


class NaivePool:
    """The rules once more, in O(n) everywhere; a block's identity is all text up to its end."""

    def __init__(self, num_blocks, size):
        self.size = size
        self.free = list(range(num_blocks))
        self.refs = [0] * num_blocks
        self.contents = [None] * num_blocks

    def identity(self, request, i):
        return request.salt, tuple(request.tokens[: (i + 1) * self.size])

    def hits(self, request):
        found = []
        for i in range((len(request.tokens) - 1) // self.size):
            if self.identity(request, i) not in self.contents:
                break
            found.append(self.contents.index(self.identity(request, i)))
        return found

    def take(self, request, num_new, hits=()):
        if len([b for b in self.free if b not in hits]) < num_new:
            return False
        for block in hits:
            if block in self.free:
                self.free.remove(block)
        new, self.free = self.free[:num_new], self.free[num_new:]
        for block in new:
            self.contents[block] = None
        for block in (*hits, *new):
            self.refs[block] += 1
        request.blocks += [*hits, *new]
        return True

    def compute(self, request, end):
        start, stop = request.computed // self.size, end // self.size
        if start < stop:
            while start and self.identity(request, start - 1) not in self.contents:
                start -= 1
        for i in range(start, stop):
            if self.identity(request, i) not in self.contents:
                self.contents[request.blocks[i]] = self.identity(request, i)
        request.computed = end

    def release(self, request):
        for block in reversed(request.blocks):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free.append(block)


class PoolMachine(RuleBasedStateMachine):
    """Requests come, grow, are computed and end, in any order."""

    @initialize(num_blocks=st.integers(2, 9), size=st.integers(1, 3))
    def begin(self, num_blocks, size):
        self.size = size
        self.pool, self.twin = BlockPool(num_blocks, size), NaivePool(num_blocks, size)
        self.requests = []
        self.known = set()

    @rule(salt=SALTS, token_ids=PROMPTS)
    def admit(self, salt, token_ids):
        table = BlockTable(self.pool, [TokenId(t) for t in token_ids], root_hash("m", salt), salt)
        twin = NaiveRequest(salt, token_ids)
        hits = table.match()
        expected = self.twin.hits(twin)
        assert [block.block_id for block in hits] == expected
        num_new = -(-len(token_ids) // self.size) - len(hits)
        admitted = table.admit(hits)
        assert admitted == self.twin.take(twin, num_new, expected)
        if admitted:
            twin.computed = len(hits) * self.size
            self.requests.append((table, twin))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), token=st.integers(0, 1))
    def decode(self, data, token):
        table, twin = data.draw(st.sampled_from(self.requests))
        needed = -(-(len(twin.tokens) + 1) // self.size) - len(twin.blocks)
        table.append(TokenId(token))
        twin.tokens.append(token)
        grown = table.grow()
        assert grown == self.twin.take(twin, needed)
        if not grown:  # the engine would preempt; here the request ends
            self.requests.remove((table, twin))
            table.release()
            self.twin.release(twin)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def compute(self, data):
        table, twin = data.draw(st.sampled_from(self.requests))
        end = data.draw(st.integers(twin.computed, len(twin.tokens)))
        table.commit(end)
        self.twin.compute(twin, end)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def release(self, data):
        table, twin = data.draw(st.sampled_from(self.requests))
        self.requests.remove((table, twin))
        table.release()
        self.twin.release(twin)

    @rule()
    def clear(self):
        cleared = self.pool.clear()
        assert cleared == (not any(self.twin.refs))
        if cleared:
            self.twin.contents = [None] * len(self.twin.contents)

    @invariant()
    def agrees(self):
        self.pool.check_integrity()
        assert self.pool.free_block_ids() == self.twin.free
        assert [table.block_ids for table, _ in self.requests] == [
            twin.blocks for _, twin in self.requests
        ]
        assert self.pool.num_cached_blocks == len([c for c in self.twin.contents if c])

    @invariant()
    def events_add_up(self):
        """Whoever applies the events in order knows exactly what is cached."""
        for event in self.pool.take_events():
            match event:
                case BlockStored():
                    assert event.parent_block_hash is None or event.parent_block_hash in self.known
                    assert not self.known & set(event.block_hashes)
                    assert len(event.token_ids) == len(event.block_hashes) * self.size
                    self.known |= set(event.block_hashes)
                case BlockRemoved():
                    assert self.known >= set(event.block_hashes)
                    self.known -= set(event.block_hashes)
                case AllBlocksCleared():
                    self.known = set()
        assert len(self.known) == self.pool.num_cached_blocks


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
