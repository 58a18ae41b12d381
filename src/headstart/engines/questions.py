"""Our own questions to one engine: a small request, the whole answer, a deadline and a bound.

They have connections of their own, one a question, so that what comes on those of requests is
known to belong to requests, and nothing has to sweep them.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from headstart.engines.base import UpstreamConfig
from headstart.engines.origin import Origin
from headstart.engines.upstream import UpstreamPool
from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.wire.http1 import HeaderSection, Request, ResponseHead

_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_UPSTREAM: Final = UpstreamConfig()
_NO_FIELDS: Final = HeaderSection([], {})
_JSON_FIELDS: Final = HeaderSection([(b"content-type", b"content-type: application/json\r\n")], {})


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What an engine answered.

    Attributes:
        status: of the response.
        body: all of it.
    """

    status: int
    body: bytes


class Questions:
    """Asks one engine.

    Args:
        origin: the engine.
        max_answer_bytes: a longer answer is given up, as it is none that we asked for.
    """

    def __init__(self, origin: Origin, max_answer_bytes: int = _MAX_ANSWER_BYTES) -> None:
        self._pool = UpstreamPool(origin, replace(_UPSTREAM, max_idle=0))
        self._max_answer_bytes = max_answer_bytes

    async def get(self, path: str, limit_s: float) -> EngineAnswer:
        """Return the answer to GET `path`.

        Raises:
            UpstreamError: there was none within `limit_s`, or it was too long.
        """
        return await self._ask(Request("GET", path.encode("ascii"), _NO_FIELDS), b"", limit_s)

    async def post(self, path: str, body: bytes, limit_s: float) -> EngineAnswer:
        """Return the answer to POST `path` with a body of JSON.

        Raises:
            UpstreamError: there was none within `limit_s`, or it was too long.
        """
        return await self._ask(Request("POST", path.encode("ascii"), _JSON_FIELDS), body, limit_s)

    async def _ask(self, request: Request, body: bytes, limit_s: float) -> EngineAnswer:
        answer = _WholeAnswer(self._max_answer_bytes)
        head = self._pool.origin.head(request, len(body))
        call = self._pool.call(request.method, (head, body) if body else (head,), answer)
        try:
            async with asyncio.timeout(limit_s):
                return await answer.whole
        except TimeoutError:
            target = request.target.decode("ascii")
            raise UpstreamTimeout(
                f"no answer to {request.method} {target} within {limit_s:g} s"
            ) from None
        finally:
            call.abort()

    async def close(self) -> None:
        """End what is open."""
        await self._pool.close()


class _WholeAnswer:
    """A response as a future; a sink of `engines.upstream`."""

    def __init__(self, max_bytes: int) -> None:
        self.whole: asyncio.Future[EngineAnswer] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = bytearray()
        self._max_bytes = max_bytes

    def response_received(
        self, head: ResponseHead | None, body: bytes, *, is_complete: bool
    ) -> None:
        if head is not None:
            self._status = head.status
        self._body += body
        if self.whole.done():
            return
        if len(self._body) > self._max_bytes:
            self.whole.set_exception(UpstreamError(f"its answer exceeds {self._max_bytes} bytes"))
        elif is_complete:
            self.whole.set_result(EngineAnswer(self._status, bytes(self._body)))

    def response_failed(self, error: UpstreamError) -> None:
        if not self.whole.done():
            self.whole.set_exception(error)

    def engine_stalled(self) -> None:
        """Nothing to do: the question has a deadline of its own."""
