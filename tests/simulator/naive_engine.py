"""The simulated engine step by step, without spans: slow, and plain enough to be believed."""

from dataclasses import dataclass, field

from headstart.kv.pool import BlockPool
from headstart.simulator.engine import EngineModel
from headstart.simulator.job import Job


@dataclass
class _Running:
    job: Job
    blocks: list
    computed: int
    cached: int
    stored: int
    generated: int = 0


@dataclass
class NaiveEngine:
    """Takes (time, job) in order of time; `run` returns when first tokens and ends came."""

    model: EngineModel
    pool: BlockPool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.model.num_blocks, 1)

    def run(self, submissions: list[tuple[float, Job]]) -> dict[int, tuple[float, float, int]]:
        pending, waiting, running = list(submissions), [], []
        now, done = -1.0, {}
        firsts: dict[int, float] = {}
        while pending or waiting or running:
            self._arrive(pending, waiting, now)
            if not waiting and not running:  # whoever comes to an idle engine starts at once
                now = pending[0][0]
                waiting.append(pending.pop(0)[1])
            now += self._step(waiting, running)
            for one in running:
                if one.computed < one.job.input_tokens:
                    continue
                one.generated += 1
                firsts.setdefault(one.job.number, now)
            ended = [one for one in running if one.generated == one.job.output_tokens]
            for one in sorted(ended, key=lambda one: one.job.number):
                running.remove(one)
                self.pool.free(one.blocks)
                done[one.job.number] = (firsts[one.job.number], now, one.cached)
        return done

    def _arrive(self, pending: list[tuple[float, Job]], waiting: list[Job], now: float) -> None:
        while pending and pending[0][0] <= now:
            waiting.append(pending.pop(0)[1])

    def _step(self, waiting: list[Job], running: list[_Running]) -> float:
        model, cost = self.model, self.model.cost
        decoding = [one for one in running if one.computed == one.job.input_tokens]
        left = num_tokens = 0
        left = max(model.token_budget - len(decoding), 1)
        admits = model.token_budget - len(decoding)
        for one in running:
            admits -= one.job.input_tokens - one.computed
        while waiting and admits > 0 and len(running) < model.max_num_seqs:
            one = self._admit(waiting[0])
            if one is None:
                break
            waiting.pop(0)
            running.append(one)
            rest = one.job.input_tokens - one.computed
            self._store(one, one.computed + min(rest, admits))
            admits -= rest
        seconds = cost.decode_context_s * sum(
            one.job.input_tokens + one.generated for one in decoding
        )
        for one in running:
            chunk = min(one.job.input_tokens - one.computed, left)
            if chunk:
                seconds += cost.attention_s(chunk, one.computed + 0.5 * chunk)
                one.computed += chunk
                self._store(one, one.computed)
                left -= chunk
                num_tokens += chunk
        return model.slowness * (seconds + cost.linear_s(num_tokens + len(decoding)))

    def _admit(self, job: Job) -> _Running | None:
        size = self.model.block_tokens
        hits = self.pool.match(job.keys)
        total = -(-(job.input_tokens + job.output_tokens) // size)
        new = self.pool.allocate(hits, total - len(hits))
        if new is None:
            return None
        cached = len(hits) * size
        return _Running(job, hits + new, cached, cached, len(hits))

    def _store(self, one: _Running, num_tokens: int) -> None:
        job = one.job
        end = min(num_tokens // self.model.block_tokens, len(job.keys))
        for index in range(one.stored, end):
            self.pool.store(
                one.blocks[index : index + 1],
                job.keys[index : index + 1],
                job.ids[index : index + 1],
                parent=job.keys[index - 1] if index else None,
            )
        one.stored = max(one.stored, end)
