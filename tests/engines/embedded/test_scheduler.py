"""The scheduler's rules, and a state machine that looks for deadlocks and lost blocks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headstart.engines.embedded.scheduler import Scheduler, SequenceState
from headstart.kv.block_table import BlockTable
from headstart.kv.hashing import root_hash
from headstart.kv.pool import BlockPool

BLOCK = 4


class World:
    """A scheduler with a pool, whose steps are computed in no time."""

    def __init__(self, num_blocks=64, budget=16, max_num_seqs=8, caching=True):
        self.pool = BlockPool(num_blocks, BLOCK)
        self.scheduler = Scheduler(BLOCK, budget, max_num_seqs)
        self.root = root_hash("m", None) if caching else None

    def add(self, name, token_ids):
        sequence = SequenceState(name, BlockTable(self.pool, token_ids, self.root))
        self.scheduler.add(sequence)
        return sequence

    def step(self):
        """Compute a step; sampled tokens are 0. Returns {name: tokens computed}."""
        plan = self.scheduler.schedule()
        for part in plan.scheduled:
            self.scheduler.complete(part)
            if part.is_sampling:
                part.sequence.table.append(0)
        self.scheduler.check_integrity()
        self.pool.check_integrity()
        return {part.sequence.request_id: part.num_tokens for part in plan.scheduled}


def prompt(length, branch=0, shared=0):
    """`shared` tokens that all prompts have, then tokens of `branch`."""
    return [*range(shared), *(1000 * (branch + 1) + i for i in range(length - shared))]


def test_a_long_prompt_is_computed_in_chunks_and_decoding_goes_on():
    """The budget is per step; a request that decodes takes one token of it, first."""
    world = World()
    world.add("a", prompt(5))
    assert world.step() == {"a": 5}
    world.add("b", prompt(40, branch=1))
    assert [world.step() for _ in range(4)] == [
        {"a": 1, "b": 15},
        {"a": 1, "b": 15},
        {"a": 1, "b": 10},
        {"a": 1, "b": 1},
    ]


def test_requests_are_admitted_in_order_of_arrival():
    """One that does not fit holds up those behind it, even if they would fit."""
    world = World(num_blocks=8)
    world.add("a", prompt(16))
    world.step()
    big = world.add("big", prompt(20, branch=1))
    world.add("small", prompt(3, branch=2))
    assert world.step() == {"a": 1}
    assert world.scheduler.num_waiting == 2
    assert big.cached_tokens is None


def test_no_more_run_than_allowed():
    """The rest waits, whatever fits."""
    world = World(max_num_seqs=2)
    for i in range(3):
        world.add(str(i), prompt(3, branch=i))
    assert world.step() == {"0": 3, "1": 3}


def test_followers_wait_for_the_leader_and_compute_only_their_own_part():
    """Eight cold requests on one prefix of 40 tokens prefill it once."""
    world = World(budget=16)
    sequences = [world.add(str(i), prompt(43, branch=i, shared=40)) for i in range(8)]
    assert world.step() == {"0": 16}
    assert world.step() == {"0": 16}
    assert world.step() == {"0": 11}  # 11 of the leader are left; the prefix is complete now
    assert world.step() == {"0": 1} | {str(i): 3 for i in range(1, 6)}
    world.step()
    assert [s.cached_tokens for s in sequences] == [0] + [40] * 7
    assert world.scheduler.counts.prefilled_tokens == 43 + 7 * 3
    assert world.scheduler.counts.hits_tokens == 7 * 40
    assert world.scheduler.counts.queries_tokens == 8 * 43


def test_a_follower_that_shares_less_goes_as_soon_as_its_part_is_there():
    """It does not wait for blocks of the leader that it does not share."""
    world = World(budget=16)
    world.add("leader", prompt(60))
    short = world.add("short", [*prompt(60)[:8], 7, 7, 7])
    assert world.step() == {"leader": 16}
    assert world.step() == {"leader": 16}  # the budget is the leader's
    world.scheduler.schedule()
    assert short.waits_for is None


def test_a_request_behind_a_held_one_may_pass():
    """Waiting for a leader blocks nobody else."""
    world = World(budget=32)
    world.add("leader", prompt(20))
    world.add("held", prompt(20))
    world.add("other", prompt(6, branch=5))
    assert world.step() == {"leader": 20, "other": 6}


def test_if_the_leader_ends_early_a_follower_takes_over():
    """What the leader had computed is used, the rest is computed by one of the others."""
    world = World(budget=16)
    leader = world.add("0", prompt(43, shared=40))
    followers = [world.add(str(i), prompt(43, branch=i, shared=40)) for i in (1, 2)]
    world.step()
    world.scheduler.remove(leader)
    assert world.step() == {"1": 16}
    assert world.step() == {"1": 11}
    assert world.step() == {"1": 1, "2": 3}
    assert [f.cached_tokens for f in followers] == [16, 40]


def test_when_blocks_run_out_the_youngest_gives_way_and_comes_back():
    """Its tokens are kept and recomputed, mostly from its own cached blocks."""
    world = World(num_blocks=6, budget=32)
    world.add("old", prompt(11))
    young = world.add("young", prompt(11, branch=1))
    while not world.scheduler.counts.preemptions:
        world.step()
    assert world.scheduler.num_running == world.scheduler.num_waiting == 1
    assert young.num_computed == 0
    num_tokens = young.table.num_tokens
    assert num_tokens > 11
    old = next(s for s in [*world.scheduler._running])
    world.scheduler.remove(old)
    plan = world.scheduler.schedule()
    assert [s.request_id for s in plan.admitted] == ["young"]
    assert young.num_computed > 0
    assert plan.scheduled[0].num_tokens == num_tokens - young.num_computed


def test_with_caching_off_nothing_is_shared_or_awaited():
    """Two equal requests are computed side by side."""
    world = World(budget=64, caching=False)
    world.add("a", prompt(20))
    world.add("b", prompt(20))
    assert world.step() == {"a": 20, "b": 20}
    assert world.scheduler.counts.hits_tokens == 0


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come and end at any time; whoever stays always finishes."""

    @initialize(
        num_blocks=st.integers(4, 12),
        budget=st.integers(1, 20),
        max_num_seqs=st.integers(1, 5),
        caching=st.booleans(),
    )
    def begin(self, num_blocks, budget, max_num_seqs, caching):
        self.world = World(num_blocks, budget, max_num_seqs, caching)
        self.capacity = num_blocks * BLOCK
        self.open = {}
        self.count = 0

    @rule(length=st.integers(1, 30), branch=st.integers(0, 2), shared=st.integers(0, 12))
    def add(self, length, branch, shared):
        length = min(length, self.capacity - 8)
        name = str(self.count)
        self.count += 1
        self.open[name] = self.world.add(name, prompt(length, branch, min(shared, length)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.world.scheduler.remove(self.open.pop(name))

    @rule()
    def step(self):
        self.world.step()
        for name, sequence in list(self.open.items()):
            if sequence.table.num_tokens - sequence.num_prompt_tokens >= 8:
                self.world.scheduler.remove(self.open.pop(name))

    @invariant()
    def blocks_belong_to_running_requests(self):
        pool = self.world.pool
        held = {b for s in self.open.values() for b in s.table.block_ids}
        assert len(held) == pool.num_blocks - pool.num_free_blocks

    def teardown(self):
        if not hasattr(self, "world"):
            return
        for _ in range(40 * (len(self.open) + 1) * 8):
            if not self.open:
                break
            self.step()
        assert not self.open, "somebody starves"
        assert self.world.pool.num_free_blocks == self.world.pool.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
