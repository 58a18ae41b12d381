"""Tokens of requests, made beside the event loop and remembered on it.

Theory of operation: a prompt seen before costs one look-up on the event loop. Any other is handed
to one worker thread, and its request waits for the result, at most `deadline_s`; then it is routed
without tokens, and the result is remembered when it comes. One thread, because rendering holds the
interpreter's lock and tokenising, which lets go of it, is short: two would take turns. It is asked
nothing that would only wait: of a request that cannot be done in time, judged by the bytes before
it and by how fast the last ones went, only the result is kept.

Everything but the thread's own work happens on the event loop, so that nothing needs a lock.
"""

from typing import Final

import msgspec

from headstart.clock import Clock
from headstart.engines.tokenizers.config import TokenisingConfig
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.gateway.token_worker import TokenJob, TokensCallback, TokenTicket, TokenWorker
from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.lru_table import TableStatistics
from headstart.prompt.token_cache import PromptMemo, memo_key
from headstart.prompt.token_keys import TokenPrompt

_FIRST_RATE: Final = 2e6
"""Bytes a second, until it was measured: 8 KB in 4 ms."""

_RATE_SHARE: Final = 0.1
"""Of the newest measurement in the rate."""

_CLOCK_STEP_S: Final = 60
"""Templates that ask for the time are rendered anew so often; most print the date."""


class TokenisingStatistics(msgspec.Struct, frozen=True):
    """What the service does and holds.

    Attributes:
        num_waiting: prompts that were handed to the thread and have not come back.
        waiting_bytes: of their bodies.
        num_tokenised: prompts that came back with tokens.
        num_unknown: those that came back without.
        num_late: requests that were routed without tokens, as these came too late.
        num_refused: requests for which there was no room, or whose body was too long.
        memo: whole prompts seen before.
        tables: of each tokenizer's cache, by model and table.
    """

    num_waiting: int
    waiting_bytes: int
    num_tokenised: int
    num_unknown: int
    num_late: int
    num_refused: int
    memo: TableStatistics
    tables: dict[str, dict[str, TableStatistics]]


class _Model(msgspec.Struct):
    """How a model's name is tokenised.

    Attributes:
        tokenizer: of the model, or of the one that it adapts.
        lora_name: of the adapter; empty for a model itself.
        block_sizes: of the replicas that tell what they hold; empty if none does.
    """

    tokenizer: ModelTokenizer
    lora_name: str
    block_sizes: tuple[int, ...] = ()


class Tokenising:
    """Tokenises for one event loop. Build it inside.

    Args:
        config: bounds.
        clock: for measuring, and for templates that ask for the time.
    """

    def __init__(self, config: TokenisingConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self._memo = PromptMemo(config.prompt_cache_bytes)
        self._jobs: dict[bytes, TokenJob] = {}
        self._waiting_bytes = 0
        self._rate = _FIRST_RATE
        self._num_tokenised = self._num_unknown = self._num_late = self._num_refused = 0
        self._worker = TokenWorker(clock, self._finished)

    # What is tokenised.

    def add_model(self, model: str, tokenizer: ModelTokenizer, lora_name: str = "") -> None:
        """Tokenise requests for `model`.

        Args:
            model: as requests name it.
            tokenizer: of it, or of its base.
            lora_name: of the adapter, as KV events name it; empty for a base model.
        """
        old = self._models.get(model)
        if old is not None and old.tokenizer is tokenizer and old.lora_name == lora_name:
            return
        sizes = old.block_sizes if old is not None else ()
        self._models[model] = _Model(tokenizer, lora_name, sizes)
        self._memo.clear()

    def remove_model(self, model: str) -> None:
        """Tokenise nothing more for `model`."""
        if self._models.pop(model, None) is not None:
            self._memo.clear()

    def set_block_sizes(self, model: str, block_sizes: frozenset[int]) -> None:
        """Say for which sizes of block keys are wanted.

        Args:
            model: as requests name it; without a tokenizer this does nothing.
            block_sizes: of its replicas that send KV events, whether or not their tokens are known
                to be ours: counts show that again. Empty if there is none.
        """
        entry, sizes = self._models.get(model), tuple(sorted(block_sizes))
        if entry is not None and entry.block_sizes != sizes:
            entry.block_sizes = sizes
            self._memo.clear()

    def needs_tokens(self, model: str) -> bool:
        """Return whether a request's tokens are of use to anybody.

        Cost: 0.1 us.
        """
        entry = self._models.get(model)
        return entry is not None and entry.block_sizes != ()

    # Requests.

    def key_of(
        self, model: str, prompt: PromptKeys, tail: bytes, ending: bytes = b""
    ) -> bytes | None:
        """Return what `lookup` and `submit` know a prompt by; None if it is too short to matter.

        Args:
            model: that needs tokens.
            prompt: keys of its bytes, whose namespace has the model and the salt.
            tail: see `token_cache.tail_of`.
            ending: see `token_cache.memo_key`.

        Cost: 0.6 us.
        """
        if self._models[model].tokenizer.reads_clock:
            ending += int(self._clock.time() // _CLOCK_STEP_S).to_bytes(8, "little")
        return memo_key(prompt, tail, ending)

    def lookup(self, key: bytes) -> tuple[TokenPrompt | None] | None:
        """Return the tokens of a prompt seen before, in a tuple; None of any other.

        The tuple holds None for a prompt that has no known tokens.

        Cost: 0.3 us.
        """
        return self._memo.get(key)

    def submit(
        self,
        key: bytes,
        model: str,
        body: bytes,
        callback: TokensCallback,
        *,
        is_chat: bool,
        cache_salt: str = "",
    ) -> TokenTicket | None:
        """Have a prompt tokenised that `lookup` does not know.

        Args:
            key: of it.
            model: that needs tokens.
            body: of the request, as it is sent.
            callback: called on the loop, not before this returns, within the deadline.
            is_chat: a chat request, and not a completion.
            cache_salt: of the request.

        Returns:
            None if the request should not wait: it could not be done in time, or there is no room.
        """
        if len(body) > self._config.max_prompt_bytes:
            self._num_refused += 1
            return None
        job = self._jobs.get(key)
        if job is None or job.is_dropped:
            if self._waiting_bytes + len(body) > self._config.max_waiting_bytes:
                self._num_refused += 1
                return None
            job = self._start(key, model, body, is_chat=is_chat, cache_salt=cache_salt)
        deadline_s = self._config.deadline_s
        if self._waiting_bytes > self._rate * deadline_s:
            self._num_late += 1
            return None
        ticket = TokenTicket(job, callback)
        job.tickets.append(ticket)
        ticket.expire_in(deadline_s, self._too_late)
        return ticket

    def statistics(self) -> TokenisingStatistics:
        """Return what it does and holds."""
        return TokenisingStatistics(
            len(self._jobs),
            self._waiting_bytes,
            self._num_tokenised,
            self._num_unknown,
            self._num_late,
            self._num_refused,
            self._memo.statistics(),
            {name: entry.tokenizer.statistics() for name, entry in self._models.items()},
        )

    async def close(self) -> None:
        """End the thread; whoever waits hears None."""
        for job in list(self._jobs.values()):
            job.is_dropped = True
            for ticket in job.tickets:
                ticket.settle(None)
        self._jobs.clear()
        await self._worker.close()

    # On the loop.

    def _start(
        self, key: bytes, model: str, body: bytes, *, is_chat: bool, cache_salt: str
    ) -> TokenJob:
        entry = self._models[model]
        job = TokenJob(
            key,
            model,
            entry.tokenizer,
            entry.lora_name,
            cache_salt,
            entry.block_sizes,
            body,
            is_chat,
            [],
        )
        self._jobs[key] = job
        self._waiting_bytes += len(body)
        self._worker.take(job)
        return job

    def _too_late(self, ticket: TokenTicket) -> None:
        self._num_late += 1
        ticket.settle(None)

    def _finished(self, job: TokenJob) -> None:
        self._waiting_bytes -= len(job.body)
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        if job.took_s > 0:
            self._rate += _RATE_SHARE * (len(job.body) / job.took_s - self._rate)
            if job.result is None:
                self._num_unknown += 1
            else:
                self._num_tokenised += 1
            if self._is_current(job):
                self._memo.put(job.key, job.result)
        for ticket in job.tickets:
            ticket.settle(job.result)

    def _is_current(self, job: TokenJob) -> bool:
        """Return whether its model is still tokenised as it was when it was begun."""
        entry = self._models.get(job.model)
        return (
            entry is not None
            and entry.tokenizer is job.tokenizer
            and entry.block_sizes == job.block_sizes
        )
