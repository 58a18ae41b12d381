"""The thread in which prompts are tokenised, and what goes through it."""

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from queue import SimpleQueue
from typing import Final

import msgspec

from headstart.clock import Clock
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.prompt.token_keys import TokenPrompt, block_root
from headstart.types import JsonObject

_log = logging.getLogger(__name__)

TokensCallback = Callable[[TokenPrompt | None], None]
"""Hears a request's tokens, or None if they are not known, or not in time."""

_BODY: Final = msgspec.json.Decoder(dict[str, object])
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class TokenJob(msgspec.Struct, eq=False):
    """One prompt on its way through the thread.

    Attributes:
        key: that it is known by.
        model: as requests name it.
        tokenizer: of the model.
        lora_name: of the adapter; empty for a base model.
        cache_salt: of the request.
        block_sizes: for which there are to be keys.
        body: of the request.
        is_chat: a chat request.
        tickets: of those who wait for it.
        result: its tokens, once it came back.
        took_s: time in the thread; 0 if it was left out.
        is_dropped: nobody wants it any more.
    """

    key: bytes
    model: str
    tokenizer: ModelTokenizer
    lora_name: str
    cache_salt: str
    block_sizes: tuple[int, ...]
    body: bytes
    is_chat: bool
    tickets: list["TokenTicket"]
    result: TokenPrompt | None = None
    took_s: float = 0.0
    is_dropped: bool = False


class TokenTicket:
    """A request that waits for its tokens; cancel it if the client leaves."""

    __slots__ = ("_callback", "_job", "_timer")

    def __init__(self, job: TokenJob, callback: TokensCallback) -> None:
        self._job = job
        self._callback: TokensCallback | None = callback
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Its callback has not been called, and will be."""
        return self._callback is not None

    def expire_in(self, delay_s: float, late: Callable[["TokenTicket"], None]) -> None:
        """Have `late` called unless the tokens come before."""
        self._timer = asyncio.get_running_loop().call_later(delay_s, late, self)

    def cancel(self) -> None:
        """Want nothing any more; work that nobody wants and that has not begun is left out."""
        self._callback = None
        if self._timer is not None:
            self._timer.cancel()
        job = self._job
        job.is_dropped = not any(ticket.is_open for ticket in job.tickets)

    def settle(self, tokens: TokenPrompt | None) -> None:
        """Tell the result, once."""
        callback, self._callback = self._callback, None
        if self._timer is not None:
            self._timer.cancel()
        if callback is not None:
            callback(tokens)


class TokenWorker:
    """One thread, begun with the first prompt. Build it inside a running event loop.

    Args:
        clock: for measuring, and for templates that ask for the time.
        finished: hears on the loop of each prompt that came back.
    """

    def __init__(self, clock: Clock, finished: Callable[[TokenJob], None]) -> None:
        self._clock = clock
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[TokenJob | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, job: TokenJob) -> None:
        """Put a prompt behind those that wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tokens", daemon=True)
            self._thread.start()
        self._queue.put(job)

    async def close(self) -> None:
        """Wait for the prompt that is under way, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            if job is None:
                return
            if not job.is_dropped:
                self._tokenise(job)
            try:
                self._loop.call_soon_threadsafe(self._finished, job)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                return

    def _tokenise(self, job: TokenJob) -> None:
        began = self._clock.monotonic()
        try:
            job.result = job.tokenizer.prompt(
                _parse(job.body),
                is_chat=job.is_chat,
                now=datetime.fromtimestamp(self._clock.time()),  # local, as engines
                root=block_root(job.lora_name, job.cache_salt),
                block_sizes=job.block_sizes,
            )
        except Exception as error:  # noqa: BLE001 -- the top of a thread: one fault, one prompt
            # Its message may quote the prompt, so the log gets its kind only.
            _log.error("%s while tokenising a prompt", type(error).__name__)
        job.took_s = max(self._clock.monotonic() - began, 1e-6)


def _parse(body: bytes) -> JsonObject:
    try:
        return _BODY.decode(body)
    except _UNREADABLE:
        return {}
