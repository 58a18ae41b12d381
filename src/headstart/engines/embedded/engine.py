"""The embedded engine: one thread that schedules, computes and hands out tokens, step by step.

    submit / abort / reset ──► inbox ──► engine's thread: schedule → compute → sample → callbacks
         (any thread)                    (sole owner of scheduler, pool and backend)

A request that fails ends alone, with an error output: if a batch cannot be computed, its members
are computed one by one; blocks become reusable only after they were computed. If the thread itself
ends, every request that is still open gets an error output.
"""

import logging
import secrets
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from headstart.clock import Clock, SystemClock
from headstart.engines.embedded.backend import Backend, SequenceStep
from headstart.engines.embedded.backends import make_backend
from headstart.engines.embedded.generation import Generation
from headstart.engines.embedded.gguf import FloatArray, build_tokenizer, load_gguf
from headstart.engines.embedded.model import read_config
from headstart.engines.embedded.request import (
    GenerationOutput,
    GenerationRequest,
    OutputCallback,
)
from headstart.engines.embedded.scheduler import ScheduledStep, Scheduler, SequenceState
from headstart.engines.embedded.statistics import EngineStatistics, FinishedRequest
from headstart.engines.embedded.validation import check_request
from headstart.errors import BadRequest, Overloaded, UpstreamUnavailable
from headstart.kv.block_table import BlockTable
from headstart.kv.events import KvEvent
from headstart.kv.hashing import root_hash
from headstart.kv.pool import BlockPool
from headstart.prompt.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine runs and how much it may hold.

    Attributes:
        model_path: a GGUF file of llama architecture.
        model_name: what clients call it; part of the hash namespace.
        backend: "numpy" (float32) or "torch" (bfloat16; needs the extra `torch`).
        block_size: tokens per KV block.
        num_blocks: KV blocks; `num_blocks * block_size` tokens bound every request.
        max_num_batched_tokens: tokens computed per step; a longer prompt takes several steps.
        max_num_seqs: requests that hold KV at the same time.
        max_num_waiting: requests that may wait; more are refused with 429.
        enable_prefix_caching: reuse KV of equal prefixes.
        namespace: replaces model and backend in block hashes; replicas that publish equal hashes
            for equal prefixes have equal namespaces.
        threads: threads that compute; None: the physical cores.
    """

    model_path: Path
    model_name: str
    backend: Literal["numpy", "torch"] = "numpy"
    block_size: int = 16
    num_blocks: int = 512
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    max_num_waiting: int = 1024
    enable_prefix_caching: bool = True
    namespace: str | None = None
    threads: int | None = None


class EmbeddedEngine:
    """Generates text from a local model with its own KV pool; speaks no HTTP.

    Args:
        config: see there; weights are read here (2 s for 135 M parameters).
        clock: for timings.

    Raises:
        ModelUnavailable: the model cannot be used.
        ConfigError: torch is wanted and not installed, or the pool does not fit in memory.

    The callbacks `on_kv_events` and `on_finished` may be set before `start`; they are called on
    the engine's thread and must not block.
    """

    def __init__(self, config: EngineConfig, clock: Clock | None = None) -> None:
        model = load_gguf(config.model_path)
        sizes = read_config(model)  # first: it says whether this is a model for this engine
        self.config = config
        self.model_name = config.model_name
        self.tokenizer: Tokenizer = build_tokenizer(model)
        self.chat_template_source: str | None = model.chat_template
        self.bos_token: str | None = model.bos_token
        self.bos_token_id: int | None = model.bos_token_id
        self.add_bos_token: bool = model.add_bos_token
        self.eos_token: str | None = model.eos_token
        self.eos_token_ids: frozenset[int] = model.end_token_ids
        num_slots = config.num_blocks * config.block_size
        self.context_length: int = min(sizes.context_length, num_slots)
        self.on_kv_events: Callable[[Sequence[KvEvent]], None] | None = None
        self.on_finished: Callable[[FinishedRequest], None] | None = None

        self._clock: Clock = clock or SystemClock()
        self._backend: Backend = make_backend(
            config.backend, model, config.num_blocks, config.block_size, config.threads
        )
        self._pool = BlockPool(config.num_blocks, config.block_size)
        self._scheduler = Scheduler(
            config.block_size, config.max_num_batched_tokens, config.max_num_seqs
        )
        self._namespace = config.namespace or f"{config.model_name}/{config.backend}"
        self._generations: dict[str, Generation] = {}  # engine's thread only
        self._prompt_tokens = 0
        self._cached_prompt_tokens = 0
        self._generation_tokens = 0

        self._changed = threading.Condition()  # guards the four below and, with none open, the pool
        self._inbox: deque[Callable[[], None]] = deque()
        self._open: dict[str, tuple[GenerationRequest, OutputCallback]] = {}
        self._is_running = False
        self._is_stopping = False
        self._statistics = self._snapshot()
        self._thread = threading.Thread(target=self._run, name="headstart-engine", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether requests are taken: from `start` to `stop`, unless the thread has failed."""
        return self._is_running and not self._is_stopping

    def start(self) -> None:
        """Start the engine's thread; once in an engine's life."""
        with self._changed:
            self._is_running = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current step; open requests end with an error output."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: GenerationRequest, callback: OutputCallback) -> None:
        """Queue a request; `callback` gets each token, on the engine's thread. Thread-safe.

        The last output has a finish reason; after it the callback is not called again. A callback
        that raises ends its request.

        Raises:
            BadRequest: a parameter is out of range, or the id is in use.
            ContextOverflow: prompt and output do not fit; the message has the numbers.
            Overloaded: too many requests wait.
            UpstreamUnavailable: the engine does not run.
        """
        check_request(request, self.context_length, self.tokenizer.vocab_size)
        with self._changed:
            self._require_running()
            if request.request_id in self._open:
                raise BadRequest(f"request id {request.request_id!r} is in use; choose another")
            limit = self.config.max_num_seqs + self.config.max_num_waiting
            if len(self._open) >= limit:
                raise Overloaded(f"{len(self._open)} requests are open, the limit; try again later")
            self._open[request.request_id] = (request, callback)
            self._inbox.append(lambda: self._add(request, callback))
            self._changed.notify()

    def abort(self, request_id: str) -> None:
        """End a request; its blocks are free before the next step. Thread-safe.

        Its callback gets a last output with reason "abort". Unknown and finished ids are ignored.
        """
        with self._changed:
            self._inbox.append(lambda: self._abort(request_id))
            self._changed.notify()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, unless requests are open; returns whether it did.

        Thread-safe.

        Raises:
            UpstreamUnavailable: the engine does not run.
        """
        with self._changed:
            self._require_running()
            # With no request open, the thread touches the pool only to take events, under the lock.
            if self._open or not self._pool.clear():
                return False
            self._inbox.append(lambda: None)  # so that the thread wakes and reports the event
            self._changed.notify()
        return True

    def statistics(self) -> EngineStatistics:
        """Return the figures as of the last step. Thread-safe; costs nothing."""
        return self._statistics

    def _require_running(self) -> None:
        if not self.is_running:
            raise UpstreamUnavailable(
                f"the engine of {self.model_name} does not run; start it or see its log"
            )

    def _run(self) -> None:
        """Be the engine's thread."""
        error = "the engine was stopped"
        try:
            while self._apply_commands():
                if self._scheduler.has_work:
                    self._step()
                self._report()
        except Exception as exc:  # noqa: BLE001 - top of the thread
            _log_failure("the engine's thread ended", exc)
            error = f"the engine failed: {type(exc).__name__}; restart it"
        finally:
            self._close(error)

    def _apply_commands(self) -> bool:
        """Wait until there is something to do and take in what others asked; False: stop."""
        with self._changed:
            while not (self._inbox or self._scheduler.has_work or self._is_stopping):
                self._changed.wait()
            if self._is_stopping:
                return False
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()
        return True

    def _add(self, request: GenerationRequest, callback: OutputCallback) -> None:
        root = None
        if self.config.enable_prefix_caching:
            root = root_hash(self._namespace, request.cache_salt)
        table = BlockTable(self._pool, request.prompt_token_ids, root, request.cache_salt)
        sequence = SequenceState(request.request_id, table)
        self._generations[request.request_id] = Generation(
            request,
            callback,
            sequence,
            self.tokenizer,
            self.eos_token_ids,
            default_seed=secrets.randbits(64),
        )
        self._scheduler.add(sequence)

    def _abort(self, request_id: str) -> None:
        generation = self._generations.get(request_id)
        if generation is not None:
            self._finish(generation, generation.output("", (), "abort"))

    def _step(self) -> None:
        plan = self._scheduler.schedule()
        now_s = self._clock.monotonic()
        for sequence in plan.admitted:
            self._generations[sequence.request_id].admit(now_s)
        for step, logits in self._compute(plan.scheduled):
            generation = self._generations[step.sequence.request_id]
            if isinstance(logits, str):
                self._finish(generation, generation.output("", (), "abort", error=logits))
                continue
            self._scheduler.complete(step)
            if logits is not None:
                self._sample(generation, logits)

    def _compute(
        self, steps: Sequence[ScheduledStep]
    ) -> list[tuple[ScheduledStep, FloatArray | str | None]]:
        """Compute a step; for each part its logits if it samples, or a message if it failed."""
        if not steps:
            return []
        try:
            logits = iter(self._backend.forward([_backend_step(step) for step in steps]))
        except Exception as exc:  # noqa: BLE001 - top of each request's part
            if len(steps) > 1:
                return [result for step in steps for result in self._compute([step])]
            _log_failure(f"request {steps[0].sequence.request_id} cannot be computed", exc)
            return [(steps[0], f"the engine failed on this request: {type(exc).__name__}")]
        return [(step, next(logits) if step.is_sampling else None) for step in steps]

    def _sample(self, generation: Generation, logits: FloatArray) -> None:
        was_first = generation.num_output_tokens == 0
        try:
            output = generation.sample(logits, self._clock.monotonic())
        except Exception as exc:  # noqa: BLE001 - top of this request's part
            _log_failure(f"request {generation.request.request_id} cannot be sampled", exc)
            error = f"the engine failed on this request: {type(exc).__name__}"
            output = generation.output("", (), "abort", error=error)
        self._generation_tokens += len(output.token_ids)
        if was_first:
            self._prompt_tokens += output.num_prompt_tokens
            self._cached_prompt_tokens += output.cached_tokens
        if output.finish_reason is not None:
            self._finish(generation, output)
        elif not _call(generation.callback, output):
            self._finish(generation, generation.output("", (), "abort"))

    def _finish(self, generation: Generation, last: GenerationOutput) -> None:
        assert last.finish_reason is not None
        request_id = generation.request.request_id
        self._scheduler.remove(generation.sequence)
        del self._generations[request_id]
        with self._changed:
            del self._open[request_id]
        self._statistics = self._snapshot()  # whoever saw the end also sees it in the figures
        if self.on_finished is not None:
            now_s = self._clock.monotonic()
            _call(self.on_finished, generation.finished(last.finish_reason, now_s, last.error))
        _call(generation.callback, last)

    def _report(self) -> None:
        self._statistics = self._snapshot()
        with self._changed:
            events = self._pool.take_events()
        if events and self.on_kv_events is not None:
            _call(self.on_kv_events, events)

    def _snapshot(self) -> EngineStatistics:
        pool, scheduler, counts = self._pool, self._scheduler, self._scheduler.counts
        return EngineStatistics(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            kv_usage_ratio=1 - pool.num_free_blocks / pool.num_blocks,
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
            num_cached_blocks=pool.num_cached_blocks,
            prefix_cache_queries_tokens=counts.queries_tokens,
            prefix_cache_hits_tokens=counts.hits_tokens,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefilled_tokens=counts.prefilled_tokens,
            preemptions=counts.preemptions,
            evicted_blocks=pool.num_evicted_blocks,
        )

    def _close(self, error: str) -> None:
        """Tell everybody who still waits that there will be no more."""
        with self._changed:
            self._is_running = False
            still_open = list(self._open.values())
            self._open.clear()
            self._inbox.clear()
        self._statistics = replace(
            self._statistics, num_running=0, num_waiting=0, kv_usage_ratio=0.0
        )
        for request, callback in still_open:
            generation = self._generations.get(request.request_id)
            if generation is not None:
                last = generation.output("", (), "abort", error=error)
                if self.on_finished is not None:
                    now_s = self._clock.monotonic()
                    _call(self.on_finished, generation.finished("abort", now_s, error))
            else:
                num_prompt = len(request.prompt_token_ids)
                last = GenerationOutput(
                    request.request_id, "", (), "abort", num_prompt, 0, 0, error=error
                )
            _call(callback, last)


def _backend_step(step: ScheduledStep) -> SequenceStep:
    sequence = step.sequence
    start, end = sequence.num_computed, sequence.num_computed + step.num_tokens
    return SequenceStep(
        token_ids=sequence.table.token_ids[start:end],
        start=start,
        block_ids=sequence.table.block_ids,
        needs_logits=step.is_sampling,
    )


def _call(callback: Callable[[_Fact], None], fact: _Fact) -> bool:
    """Tell a listener; its failure is its own. Returns whether it took the fact."""
    try:
        callback(fact)
    except Exception as exc:  # noqa: BLE001 - a listener's failure must not end the engine
        _log_failure("a listener of the engine failed", exc)
        return False
    return True


def _log_failure(what: str, error: Exception) -> None:
    """Log an error by type and place, never by its text, which may quote a request's."""
    places = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s: %s\n%s", what, type(error).__name__, places)
