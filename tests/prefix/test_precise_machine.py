"""The precise index against a naive twin that keeps every block's whole prompt."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.prefix.precise import PreciseIndex, Tier
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.wire.kv_events import ClearedBlocks, KvEventBatch, RemovedBlocks, StoredBlocks

SIZE = 2
SLOTS, RANKS = (0, 1, 5), (0, 1)
MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU"}
BLOCKS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=4)
CACHES = st.tuples(st.sampled_from(SLOTS), st.sampled_from(RANKS))
SALTS = st.sampled_from(["", "a", "b"])


class NaiveIndex:
    """Per slot, rank and tier: how many copies there are of each block, named by its prompt."""

    def __init__(self):
        self.copies = {
            (slot, rank, tier): Counter() for slot in SLOTS for rank in RANKS for tier in MEDIA
        }

    def holds(self, slot, rank, tier, identity):
        return self.copies[slot, rank, tier][identity] > 0

    def match(self, slot, salt, blocks, tokens_left):
        best = 0
        for rank in RANKS:
            length = 0
            for end in range(1, len(blocks) + 1):
                if not self.holds(slot, rank, Tier.DEVICE, (salt, tuple(blocks[:end]))):
                    break
                length = end
            best = max(best, length)
        return min(best, (SIZE * len(blocks) + tokens_left - 1) // SIZE) * SIZE


class PreciseMachine(RuleBasedStateMachine):
    """Engines store, lose and clear blocks in any order; names are the engines' own."""

    def __init__(self):
        super().__init__()
        self.index, self.twin = PreciseIndex(), NaiveIndex()
        self.names, self.promised = {}, []
        for slot in SLOTS:
            self.index.add_replica(slot)

    def name(self, slot, rank, identity):
        """Integers on one replica, signed ones on another, bytes on the third."""
        number = self.names.setdefault((slot, rank, identity), len(self.names) + 1)
        if slot == 0:
            return number
        return -number if slot == 1 else number.to_bytes(32, "big")

    def tell(self, cache, event):
        self.index.apply(*cache, [KvEventBatch(0.0, (event,))])

    @rule(cache=CACHES, salt=SALTS, blocks=BLOCKS, start=st.integers(0, 3))
    def store(self, cache, salt, blocks, start):
        start = min(start, len(blocks) - 1)
        before = (salt, tuple(blocks[:start]))
        if start and not any(self.twin.holds(*cache, tier, before) for tier in MEDIA):
            start = 0
        parent = self.name(*cache, before) if start else None
        identities = [(salt, tuple(blocks[:end])) for end in range(start + 1, len(blocks) + 1)]
        self.tell(
            cache,
            StoredBlocks(
                tuple(self.name(*cache, identity) for identity in identities),
                parent,
                tuple(token for block in blocks[start:] for token in block),
                SIZE,
                medium="GPU",
                extra_keys=((salt,),) if salt and not start else None,
            ),
        )
        self.twin.copies[*cache, Tier.DEVICE].update(identities)

    @rule(cache=CACHES, salt=SALTS, blocks=BLOCKS)
    def offload(self, cache, salt, blocks):
        """A block that the device holds is announced on the host by its name alone."""
        identity = (salt, tuple(blocks))
        event = StoredBlocks((self.name(*cache, identity),), None, (), 0, medium="CPU")
        self.tell(cache, event)
        if any(self.twin.holds(*cache, tier, identity) for tier in MEDIA):
            self.twin.copies[*cache, Tier.HOST][identity] += 1

    @rule(cache=CACHES, salt=SALTS, blocks=BLOCKS, tier=st.sampled_from(list(MEDIA)))
    def remove(self, cache, salt, blocks, tier):
        identity = (salt, tuple(blocks))
        event = RemovedBlocks((self.name(*cache, identity),), medium=MEDIA[tier])
        self.tell(cache, event)
        copies = self.twin.copies[*cache, tier]
        if copies[identity]:
            copies[identity] -= 1

    @rule(cache=CACHES, is_event=st.booleans())
    def clear(self, cache, is_event):
        if is_event:
            self.tell(cache, ClearedBlocks())
        else:
            self.index.clear(*cache)
        for tier in MEDIA:
            self.twin.copies[*cache, tier].clear()

    @rule(slot=st.sampled_from(SLOTS))
    def replace(self, slot):
        self.index.remove_replica(slot)
        self.index.add_replica(slot)
        self.promised = [promise for promise in self.promised if promise[0] != slot]
        for rank in RANKS:
            for tier in MEDIA:
                self.twin.copies[slot, rank, tier].clear()

    @rule(salt=SALTS, blocks=BLOCKS, tokens_left=st.integers(0, 1))
    def match(self, salt, blocks, tokens_left):
        tokens = self.prompt(salt, blocks, tokens_left)
        expected = [self.twin.match(slot, salt, blocks, tokens_left) for slot in SLOTS]
        matched = self.index.match(tokens, SLOTS)
        promising = {slot for slot, _ in self.promised}
        for slot, ours, theirs in zip(SLOTS, matched, expected, strict=True):
            assert ours == theirs or (slot in promising and ours > theirs)

    @rule(slot=st.sampled_from(SLOTS), salt=SALTS, blocks=BLOCKS)
    def promise(self, slot, salt, blocks):
        tokens = self.prompt(salt, blocks, 1)
        (matched,) = self.index.match(tokens, [slot])
        self.index.promise(slot, tokens, matched, 0.0)
        self.promised.append((slot, tokens))
        size = self.index.block_size(slot)
        if size is not None:
            assert self.index.match(self.prompt(salt, blocks, 1), [slot]) == [SIZE * len(blocks)]

    @rule()
    def withdraw(self):
        while self.promised:
            self.index.withdraw(*self.promised.pop())

    def prompt(self, salt, blocks, tokens_left):
        token_ids = [token for block in blocks for token in block] + [7] * tokens_left
        keys = block_keys(token_ids, SIZE, block_root("", salt))
        return TokenPrompt(len(token_ids), {SIZE: keys})

    @invariant()
    def it_is_sound(self):
        self.index.check_integrity()

    @invariant()
    def it_holds_as_many_blocks_as_the_twin(self):
        for slot in SLOTS:
            num_blocks = self.index.statistics(slot).num_blocks
            for tier in MEDIA:
                copies = [self.twin.copies[slot, rank, tier] for rank in RANKS]
                held = sum(count > 0 for counter in copies for count in counter.values())
                assert num_blocks.get(tier, 0) == held


TestPreciseMachine = PreciseMachine.TestCase
TestPreciseMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
