"""A simulated engine: chunked prefill and continuous batching over the real block pool.

Each step has a budget of new tokens. Requests that decode take one each, what is left goes to
prompts in the order of arrival, one after another and, where one ends within a step, the next in
the same. A prompt is admitted when it is its turn and the pool has blocks for it and its answer;
its full blocks can be reused from the step on in which they are computed, as in vLLM.

Steps that are alike are taken together, as one `span`:

    one prompt that fills the budget by itself     until its last chunk, or until a decode ends
    decoding only                                  until a decode ends, or a first request arrives
    all else                                       one step

What it does not do: it never preempts (blocks for the answer are taken at admission, which vLLM
does as it goes), and does not find blocks that were generated, since traces do not name them.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf, sqrt
from typing import cast

import msgspec

from headstart.kv.pool import BlockPool
from headstart.simulator.cost import CostModel
from headstart.simulator.job import Job
from headstart.types import BlockHash, PrefixKey


class EngineModel(msgspec.Struct, frozen=True):
    """What a simulated engine is like.

    Attributes:
        cost: how long steps take.
        num_blocks: in its pool.
        block_tokens: in a block.
        token_budget: new tokens in a step (vLLM's `max_num_batched_tokens`).
        max_num_seqs: requests that run at the same time.
        slowness: factor on all times.
    """

    cost: CostModel
    num_blocks: int
    block_tokens: int
    token_budget: int = 2048
    max_num_seqs: int = 256
    slowness: float = 1.0


class Span(msgspec.Struct, gc=False):
    """Steps under way.

    Attributes:
        start_at: virtual seconds.
        end_at: likewise.
        num_steps: >= 1.
        is_decode: nothing is prefilled, so that an arrival ends it after the current step.
    """

    start_at: float
    end_at: float
    num_steps: int
    is_decode: bool


class SimulatedEngine:
    """One replica's engine in virtual time. Driven by `submit` and, at `next_at`, by `advance`.

    Args:
        model: what it is like.
        records_events: its pool tells what happens in it.

    Attributes:
        pool: its cache; events are there to be taken after `submit` and `advance`.
        next_at: when the current span ends; infinite while it is idle.
        firsts: requests whose first token came at the end of the last span.
        finished: requests that ended with it.
        computed_tokens: prefilled so far.
        generated_tokens: decoded so far.
        busy_s: time in which it was not idle.
    """

    __slots__ = (
        "_context",
        "_decoding",
        "_freed_at",
        "_model",
        "_prefilling",
        "_span",
        "_step",
        "_waiting",
        "busy_s",
        "computed_tokens",
        "finished",
        "firsts",
        "generated_tokens",
        "next_at",
        "pool",
    )

    def __init__(self, model: EngineModel, *, records_events: bool = True) -> None:
        self._model = model
        # A block counts as one token, which stands for all that are in it.
        self.pool = BlockPool(model.num_blocks, 1, records_events=records_events)
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []  # a heap by the step in which it ends
        self._context = 0  # tokens, of all that decode
        self._step = 0
        self._span: Span | None = None
        self._freed_at = [0.0] * model.num_blocks
        self.firsts: list[Job] = []
        self.finished: list[Job] = []
        self.next_at = inf
        self.computed_tokens = self.generated_tokens = 0
        self.busy_s = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests that are not admitted yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._prefilling) + len(self._decoding)

    def fits(self, job: Job) -> bool:
        """Return whether the pool could ever hold the request."""
        return self._blocks_of(job) <= self._model.num_blocks

    def num_cached(self, keys: Sequence[PrefixKey]) -> int:
        """Return how many leading blocks the pool holds."""
        return len(self.pool.match(cast("Sequence[BlockHash]", keys)))

    def has(self, key: PrefixKey) -> bool:
        """Return whether the pool holds a block, whatever lies before it."""
        return self.pool.is_cached(cast("BlockHash", key))

    def pressure(self, now: float) -> tuple[int, float | None]:
        """Return the pool's capacity in tokens, and how long what it evicts next has been idle.

        The latter is None while a block that holds nothing can be given out.
        """
        capacity = self._model.num_blocks * self._model.block_tokens
        block = next(iter(self.pool.free_blocks()), None)
        if block is None or block.block_hash is None:
            return capacity, None
        return capacity, now - self._freed_at[block.block_id]

    def submit(self, job: Job, now: float) -> None:
        """Take a request in, which fits.

        Mutates: `next_at`: at once if the engine was idle, else possibly sooner than it was.
        """
        is_first = not self._waiting
        self._waiting.append(job)
        span = self._span
        if span is None:
            self._plan(now)
        elif is_first and span.is_decode and span.num_steps > 1:
            self._cut(span, now)

    def advance(self) -> None:
        """Go to the end of the span, and begin the next.

        Mutates: everything; `firsts` and `finished` are new lists.
        """
        span = self._span
        assert span is not None
        now, steps = span.end_at, span.num_steps
        self.busy_s += now - span.start_at
        self._step += steps
        self._context += steps * len(self._decoding)
        self.generated_tokens += steps * len(self._decoding)
        self.firsts, self.finished = [], []
        self._end_prefills()
        self._end_decodes(now)
        self._plan(now)

    def fail(self) -> list[Job]:
        """End the engine: its cache is empty and all its requests are lost.

        Returns:
            Those requests, as new ones.
        """
        running = [*self._prefilling, *(job for _, _, job in self._decoding)]
        for job in running:
            self.pool.free(job.blocks)
            job.blocks = []
        self.pool.clear()
        lost = [*running, *self._waiting]
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()
        self._context = 0
        self._span, self.next_at = None, inf
        return lost

    # Steps.

    def _plan(self, now: float) -> None:
        """Begin a span of steps, if there is anything to do."""
        self._admit()
        if self._prefilling:
            self._span = self._plan_prefill(now)
        elif self._decoding:
            self._span = self._plan_decode(now)
        else:
            self._span, self.next_at = None, inf
            return
        self.next_at = self._span.end_at

    def _admit(self) -> None:
        """Admit those whose turn is in the next step."""
        model, waiting, prefilling = self._model, self._waiting, self._prefilling
        if not waiting:
            return
        left = model.token_budget - len(self._decoding)
        for job in prefilling:
            left -= job.input_tokens - job.computed_tokens
        while waiting and left > 0 and self.num_running < model.max_num_seqs:
            job = waiting[0]
            if not self._hold(job):
                if not self.num_running:
                    raise AssertionError("a request that fits must be admitted to an idle engine")
                return
            waiting.popleft()
            prefilling.append(job)
            rest = job.input_tokens - job.computed_tokens
            # What is computed in the coming step can be hit by the next in it already.
            self._store(job, job.computed_tokens + min(rest, left))
            left -= rest

    def _hold(self, job: Job) -> bool:
        """Take the request's blocks; False if there are too few."""
        hits = self.pool.match(job.keys)
        new = self.pool.allocate(hits, self._blocks_of(job) - len(hits))
        if new is None:
            return False
        job.blocks = hits + new
        job.num_stored = len(hits)
        job.cached_tokens = job.computed_tokens = len(hits) * self._model.block_tokens
        return True

    def _blocks_of(self, job: Job) -> int:
        return -(-(job.input_tokens + job.output_tokens) // self._model.block_tokens)

    def _plan_prefill(self, now: float) -> Span:
        model, cost = self._model, self._model.cost
        num_decoding = len(self._decoding)
        room = max(model.token_budget - num_decoding, 1)
        first = self._prefilling[0]
        steps = (first.input_tokens - first.computed_tokens - 1) // room
        if steps > 1:
            if num_decoding:
                steps = min(steps, self._decoding[0][0] - self._step)
            seconds = self._chunks_s(first, steps, room)
        else:
            steps, seconds, num_tokens = 1, 0.0, num_decoding
            for job in self._prefilling:
                chunk = min(job.input_tokens - job.computed_tokens, room)
                seconds += cost.attention_s(chunk, job.computed_tokens + 0.5 * chunk)
                self._compute(job, chunk)
                num_tokens += chunk
                room -= chunk
                if not room:
                    break
            seconds += cost.linear_s(num_tokens)
        seconds += self._decode_s(steps, num_decoding)
        seconds *= model.slowness
        return Span(now, now + seconds, steps, is_decode=False)

    def _chunks_s(self, job: Job, steps: int, chunk: int) -> float:
        """Compute so many chunks of one prompt; return how long they take without decoding."""
        cost = self._model.cost
        mean = job.computed_tokens + 0.5 * chunk * steps
        self._compute(job, steps * chunk)
        linear_s = cost.linear_s(chunk + len(self._decoding))
        return steps * (linear_s + cost.attention_s(chunk, mean))

    def _plan_decode(self, now: float) -> Span:
        # Whoever waits meanwhile waits for blocks or a place, which come when a request ends.
        steps = self._decoding[0][0] - self._step
        first_s, growth_s = self._decode_rate()
        return Span(now, now + steps * (first_s + steps * growth_s), steps, is_decode=True)

    def _cut(self, span: Span, now: float) -> None:
        """End a span of decoding with the step that is under way."""
        first_s, growth_s = self._decode_rate()
        passed_s = now - span.start_at
        if growth_s > 0.0:
            # The root of growth · k² + first · k = passed.
            steps = (sqrt(first_s**2 + 4.0 * growth_s * passed_s) - first_s) / (2.0 * growth_s)
        else:
            steps = passed_s / first_s
        num_steps = max(ceil(steps), 1)
        if num_steps < span.num_steps:
            span.num_steps = num_steps
            span.end_at = span.start_at + num_steps * (first_s + num_steps * growth_s)
            self.next_at = span.end_at

    def _decode_rate(self) -> tuple[float, float]:
        """Return a and b, where k steps of decoding take k·a + k²·b seconds."""
        model, num = self._model, len(self._decoding)
        context_s = model.cost.decode_context_s
        first_s = model.cost.linear_s(num) + context_s * (self._context - 0.5 * num)
        return model.slowness * first_s, model.slowness * 0.5 * context_s * num

    def _decode_s(self, steps: int, num_decoding: int) -> float:
        context = steps * (self._context + 0.5 * num_decoding * (steps - 1))
        return self._model.cost.decode_context_s * context

    def _compute(self, job: Job, num_tokens: int) -> None:
        job.computed_tokens += num_tokens
        self.computed_tokens += num_tokens
        self._store(job, job.computed_tokens)

    def _store(self, job: Job, num_tokens: int) -> None:
        start, end = job.num_stored, min(num_tokens // self._model.block_tokens, len(job.keys))
        if start < end:
            self.pool.store(
                job.blocks[start:end],
                job.keys[start:end],
                job.ids[start:end],
                parent=job.keys[start - 1] if start else None,
            )
            job.num_stored = end

    def _end_prefills(self) -> None:
        prefilling, step = self._prefilling, self._step
        while prefilling and prefilling[0].computed_tokens == prefilling[0].input_tokens:
            job = prefilling.popleft()
            self.firsts.append(job)
            self.generated_tokens += 1
            job.finish_step = step + job.output_tokens - 1
            heappush(self._decoding, (job.finish_step, job.number, job))
            self._context += job.input_tokens + 1

    def _end_decodes(self, now: float) -> None:
        decoding, step, freed_at = self._decoding, self._step, self._freed_at
        while decoding and decoding[0][0] <= step:
            job = heappop(decoding)[2]
            self._context -= job.input_tokens + job.output_tokens
            self.pool.free(job.blocks)
            for block in job.blocks:
                freed_at[block.block_id] = now
            job.blocks = []
            self.finished.append(job)
