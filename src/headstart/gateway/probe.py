"""The gateway's own questions to one engine; none carries anything of a client's.

    GET  /v1/models        is it there, and what does it serve
    GET  /metrics          does it compute
    POST /v1/completions   can it generate: one token

They have connections of their own, so that what comes on those of requests is known to belong to
requests.
"""

import asyncio
from dataclasses import replace
from typing import Final

import msgspec

from headstart.engines.origin import Origin
from headstart.engines.upstream import UpstreamPool
from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.wire.http1 import HeaderSection, Request, ResponseHead
from headstart.wire.progress import progress_figures

_JSON: Final = b"accept: application/json\r\n"
_LIST_MODELS: Final = Request("GET", b"/v1/models", HeaderSection([(b"accept", _JSON)], {}))
_METRICS: Final = Request("GET", b"/metrics", HeaderSection([], {}))
_COMPLETE: Final = Request(
    "POST",
    b"/v1/completions",
    HeaderSection(
        [(b"accept", _JSON), (b"content-type", b"content-type: application/json\r\n")], {}
    ),
)
_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024

_LOOK_S: Final = 1.0
"""Between the first two readings of an engine's counters; a step of most takes less."""


class Probe:
    """Asks one engine.

    Args:
        pool: the connections of requests, whose address and deadlines are used.
    """

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = UpstreamPool(pool.origin, replace(pool.config, max_idle=1))

    def use(self, origin: Origin) -> None:
        """Ask with another key from now on; see `UpstreamPool.use`."""
        self._pool.use(origin)

    def sweep(self, now: float) -> None:
        """Keep deadlines; see `UpstreamPool.sweep`."""
        self._pool.sweep(now)

    async def close(self) -> None:
        """End what is open."""
        await self._pool.close()

    async def models(self, limit_s: float) -> tuple[int, bytes]:
        """Return status and body of GET /v1/models.

        Raises:
            UpstreamError: there was no answer.
        """
        return await self._ask(_LIST_MODELS, b"", limit_s)

    async def is_moving(self, model: str, limit_s: float) -> bool | None:
        """Look for `limit_s` whether the engine computes; None if that cannot be told.

        A request that does not stream, or a long prompt, is silent by nature, so an engine's
        silence is no evidence. Nor are counters that stand, while it has nothing to count; but
        then it generates a token that is asked for, if it can.
        """
        time = asyncio.get_running_loop().time
        end = time() + limit_s
        before = await self._figures(limit_s)
        if before == ():
            return None  # it counts nothing that could stand still
        await asyncio.sleep(min(_LOOK_S, limit_s / 2))
        if before != await self._figures(limit_s):
            return True
        if await self.generates(model, max(end - time(), limit_s / 2)) is not False:
            return True
        await asyncio.sleep(max(0.0, end - time()))
        return before != await self._figures(limit_s)

    async def _figures(self, limit_s: float) -> tuple[bytes, ...] | None:
        """Return what on its metrics page shows progress; None if it did not answer."""
        try:
            status, page = await self._ask(_METRICS, b"", limit_s)
        except UpstreamError:
            return None
        return progress_figures(page) if status == 200 else ()

    async def generates(self, model: str, limit_s: float) -> bool | None:
        """Return whether it generates one token; None if it refuses to try."""
        body = msgspec.json.encode({"model": model, "prompt": "1", "max_tokens": 1})
        try:
            status, _ = await self._ask(_COMPLETE, body, limit_s)
        except UpstreamError:
            return False
        return None if 400 <= status < 500 else status < 400

    async def _ask(self, request: Request, body: bytes, limit_s: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    answer = await self._fetch(request, body)
                    if answer is not None:
                        return answer
        except TimeoutError:
            target = request.target.decode()
            raise UpstreamTimeout(
                f"no answer to {request.method} {target} within {limit_s:g} s"
            ) from None

    async def _fetch(self, request: Request, body: bytes) -> tuple[int, bytes] | None:
        """Return status and body; None if a kept connection was closed under the question."""
        answer = _Answer()
        head = self._pool.origin.head(request, len(body))
        call = self._pool.call(request.method, (head, body) if body else (head,), answer)
        try:
            return await answer.whole
        except UpstreamError as error:
            if isinstance(error, UpstreamTimeout) or not call.is_reused:
                raise
            return None  # that says nothing of the engine, and the pool has one connection less
        finally:
            call.abort()


class _Answer:
    """A small response as a future, off the data path."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = bytearray()

    def response_received(
        self, head: ResponseHead | None, body: bytes, *, is_complete: bool
    ) -> None:
        if head is not None:
            self._status = head.status
        if len(self._body) + len(body) <= _MAX_ANSWER_BYTES:
            self._body += body
        if is_complete and not self.whole.done():
            self.whole.set_result((self._status, bytes(self._body)))

    def response_failed(self, error: UpstreamError) -> None:
        if not self.whole.done():
            self.whole.set_exception(error)

    def engine_stalled(self) -> None:
        """Nothing to move: a question is about this engine."""
