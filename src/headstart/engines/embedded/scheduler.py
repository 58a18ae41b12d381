"""Which tokens of which requests are computed in the next step.

Continuous batching with chunked prefill: each step computes up to a budget of tokens, one for each
request that is decoding and as many as fit of the prompts that are not computed yet. Rules:

1. Running requests go first, oldest first. If one needs a block and none is free, the youngest
   running request gives up its blocks (preemption) and waits at the head of the queue; its tokens
   are kept and recomputed, mostly from its own cached blocks.
2. Waiting requests are admitted in order of arrival, if the pool has blocks for all tokens they
   have; if it has not, nobody behind them is admitted either. A step that preempts admits nobody.
3. A waiting request whose next unmatched block is being computed by a running request (the
   leader) is held back: when the leader has computed that block, it is looked up again. N cold
   requests on one prefix therefore prefill it once. If the leader ends early, the first of the
   held becomes the leader. Those behind a held request may pass it.

No deadlock: the oldest running request preempts all others, and alone it fits, because the engine
refuses requests longer than the pool; if nobody runs, all blocks are free, nobody is held, and the
first waiting request is admitted.

What it does not do: it computes no logits, samples nothing, measures no time.
"""

from collections import Counter, deque
from dataclasses import dataclass

from headstart.kv.block_table import BlockTable
from headstart.types import BlockHash


class SequenceState:
    """A request as the scheduler sees it: tokens, blocks, and how many are computed.

    Attributes:
        request_id: unique among unfinished requests.
        table: its tokens and blocks.
        num_prompt_tokens: how many of its tokens were given.
        num_computed: leading tokens whose KV is complete.
        cached_tokens: prompt tokens found in the cache at its first admission; None before.
        published: full blocks [first, end) that others may wait for.
        waits_for: the block that it is held back for; checked again at each step.
    """

    __slots__ = (
        "cached_tokens",
        "num_computed",
        "num_prompt_tokens",
        "published",
        "request_id",
        "table",
        "waits_for",
    )

    def __init__(self, request_id: str, table: BlockTable) -> None:
        self.request_id = request_id
        self.table = table
        self.num_prompt_tokens = table.num_tokens
        self.num_computed = 0
        self.cached_tokens: int | None = None
        self.published: tuple[int, int] = (0, 0)
        self.waits_for: BlockHash | None = None


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A request's part in a step.

    Attributes:
        sequence: whose.
        num_tokens: how many tokens to compute after those that are.
        is_sampling: whether these are all it has, so that the next one is sampled.
    """

    sequence: SequenceState
    num_tokens: int
    is_sampling: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step.

    Attributes:
        scheduled: at least one, unless nobody can run.
        admitted: those that begin, or begin again, in this step.
        preempted: those that lost their blocks.
    """

    scheduled: tuple[ScheduledStep, ...]
    admitted: tuple[SequenceState, ...]
    preempted: tuple[SequenceState, ...]


@dataclass(slots=True)
class SchedulerCounts:
    """Sums since the start; they only grow."""

    queries_tokens: int = 0
    hits_tokens: int = 0
    prefilled_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Requests that are waiting and running; see the module's text. Not thread-safe.

    Args:
        block_size: tokens per block of the pool that the sequences' tables use.
        max_num_batched_tokens: tokens per step, >= 1.
        max_num_seqs: running requests, >= 1.
    """

    def __init__(self, block_size: int, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        assert max_num_batched_tokens >= 1
        assert max_num_seqs >= 1
        self.counts = SchedulerCounts()
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[SequenceState] = deque()
        self._running: list[SequenceState] = []
        self._in_flight: Counter[BlockHash] = Counter()

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self._waiting or self._running)

    def add(self, sequence: SequenceState) -> None:
        """Queue a request. Alone, it must fit the pool."""
        self._waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """End a request, waiting or running; its blocks are free at once."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._let_go(sequence)
        else:
            self._waiting.remove(sequence)

    def schedule(self) -> StepPlan:
        """Choose the next step.

        Mutates: queues; blocks of those that are admitted, grow or are preempted.
        """
        budget = self._max_num_batched_tokens
        scheduled: list[ScheduledStep] = []
        preempted: list[SequenceState] = []
        position = 0
        while position < len(self._running) and budget > 0:
            sequence = self._running[position]
            if not self._grow(sequence, preempted):
                break  # it was the youngest itself
            step = _step(sequence, budget)
            scheduled.append(step)
            budget -= step.num_tokens
            position += 1
        admitted = [] if preempted else self._admit(budget, scheduled)
        return StepPlan(tuple(scheduled), tuple(admitted), tuple(preempted))

    def complete(self, step: ScheduledStep) -> None:
        """Note that a part of a step was computed: its full blocks become reusable."""
        sequence = step.sequence
        is_prefill = sequence.num_computed < sequence.table.num_tokens - 1
        if is_prefill or sequence.num_computed < sequence.num_prompt_tokens:
            self.counts.prefilled_tokens += step.num_tokens
        sequence.num_computed += step.num_tokens
        sequence.table.commit(sequence.num_computed)
        self._publish_until(sequence, sequence.num_computed // self._block_size)

    def check_integrity(self) -> None:
        """Assert every invariant. Cost: O(all blocks); for tests."""
        expected: Counter[BlockHash] = Counter()
        for sequence in self._running:
            first, end = sequence.published
            expected.update(sequence.table.full_block_hashes()[first:end])
            assert sequence.num_computed < sequence.table.num_tokens
            assert sequence.table.block_ids
        assert expected == self._in_flight
        assert all(not s.table.block_ids and s.published == (0, 0) for s in self._waiting)
        assert len(self._running) <= self._max_num_seqs

    def _grow(self, sequence: SequenceState, preempted: list[SequenceState]) -> bool:
        """Give a running request its next block, taking it from younger ones if need be."""
        while not sequence.table.grow():
            victim = self._running.pop()
            self._let_go(victim)
            victim.num_computed = 0
            self._waiting.appendleft(victim)
            preempted.append(victim)
            self.counts.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _admit(self, budget: int, scheduled: list[ScheduledStep]) -> list[SequenceState]:
        admitted: list[SequenceState] = []
        passed: list[SequenceState] = []
        while self._waiting and budget > 0 and len(self._running) < self._max_num_seqs:
            sequence = self._waiting.popleft()
            if sequence.waits_for is not None and sequence.waits_for in self._in_flight:
                passed.append(sequence)
                continue
            hits = sequence.table.match()
            sequence.waits_for = self._awaited(sequence, len(hits))
            if sequence.waits_for is not None:
                passed.append(sequence)
                continue
            if not sequence.table.admit(hits):
                passed.append(sequence)
                break
            self._begin(sequence, len(hits))
            admitted.append(sequence)
            step = _step(sequence, budget)
            scheduled.append(step)
            budget -= step.num_tokens
        self._waiting.extendleft(reversed(passed))
        return admitted

    def _awaited(self, sequence: SequenceState, num_hits: int) -> BlockHash | None:
        """Return the hash of the next block if somebody is computing it now."""
        if num_hits == sequence.table.num_matchable_blocks:
            return None
        next_hash = sequence.table.full_block_hashes()[num_hits]
        return next_hash if next_hash in self._in_flight else None

    def _begin(self, sequence: SequenceState, num_hits: int) -> None:
        self._running.append(sequence)
        sequence.num_computed = num_hits * self._block_size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            if sequence.table.is_cacheable:
                self.counts.queries_tokens += sequence.num_prompt_tokens
            self.counts.hits_tokens += sequence.num_computed
        hashes = sequence.table.full_block_hashes()
        sequence.published = (num_hits, len(hashes))
        self._in_flight.update(hashes[num_hits:])

    def _publish_until(self, sequence: SequenceState, num_full: int) -> None:
        """Withdraw the promise of blocks that are computed: they can be looked up now."""
        first, end = sequence.published
        done = min(num_full, end)
        for block_hash in sequence.table.full_block_hashes()[first:done]:
            self._in_flight[block_hash] -= 1
            if not self._in_flight[block_hash]:
                del self._in_flight[block_hash]
        sequence.published = (max(first, done), end)

    def _let_go(self, sequence: SequenceState) -> None:
        self._publish_until(sequence, sequence.published[1])
        sequence.published = (0, 0)
        sequence.table.release()


def _step(sequence: SequenceState, budget: int) -> ScheduledStep:
    remaining = sequence.table.num_tokens - sequence.num_computed
    num_tokens = min(remaining, budget)
    return ScheduledStep(sequence, num_tokens, is_sampling=num_tokens == remaining)
