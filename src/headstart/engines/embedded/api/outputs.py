"""Carry outputs from the engine's thread to an asyncio task, and cancellation back.

One HTTP request may be several sequences (`n`, several prompts). They share a queue, so their
outputs interleave in the order in which the engine made them. Leaving the block aborts whatever
is unfinished: that is what a client's disconnect comes down to.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from headstart.engines.embedded.engine import EmbeddedEngine
from headstart.engines.embedded.request import GenerationOutput, GenerationRequest
from headstart.errors import UpstreamError


class OutputStream:
    """The running sequences of one HTTP request; does not interpret their text.

    Use as `async with`: entering submits, leaving aborts what has not finished. Entering raises
    what `EmbeddedEngine.submit` raises, and then nothing stays submitted.

    Args:
        engine: a started engine.
        requests: at least one; their order gives the indices of the outputs.
    """

    def __init__(self, engine: EmbeddedEngine, requests: Sequence[GenerationRequest]) -> None:
        self._engine = engine
        self._requests = requests
        self._unfinished: dict[str, int] = {}
        self._queue: asyncio.Queue[GenerationOutput] = asyncio.Queue()

    async def __aenter__(self) -> "OutputStream":
        """Submit every sequence."""
        loop = asyncio.get_running_loop()

        def deliver(output: GenerationOutput) -> None:
            # The loop is closed only when the whole process ends; nobody waits for this then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._queue.put_nowait, output)

        try:
            for index, request in enumerate(self._requests):
                self._engine.submit(request, deliver)
                self._unfinished[request.request_id] = index
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abort what has not finished."""
        self._abort()

    async def outputs(self) -> AsyncIterator[tuple[int, GenerationOutput]]:
        """Yield (index of the sequence, output) until every sequence has finished.

        Raises:
            UpstreamError: the engine failed on a sequence.
        """
        while self._unfinished:
            output = await self._queue.get()
            index = self._unfinished[output.request_id]
            if output.finish_reason is not None:
                del self._unfinished[output.request_id]
            if output.error is not None:
                raise UpstreamError(f"The engine gave this request up: {output.error}.")
            yield index, output

    def _abort(self) -> None:
        for request_id in self._unfinished:
            self._engine.abort(request_id)
        self._unfinished.clear()
