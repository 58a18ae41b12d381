"""One replay: asked for, read to its end marker, given up in time.

    we send          "", start (8 bytes)
    each message     "", topic, seq, payload     older releases: "", seq, payload
    the end          "", topic, -1, ""           likewise

A publisher answers from the thread that also publishes, between two batches. Its socket drops what
does not fit into the pipe to us, even the end marker, so a replay may stop anywhere.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

import zmq

from headstart.engines.kv_feed.config import KvFeedConfig
from headstart.engines.kv_feed.slices import Slices
from headstart.engines.kv_feed.sockets import Frames, ReplayRequest
from headstart.wire.kv_events import KvEventDecodeError, decode_sequence, encode_sequence

_END_SEQ: Final = -1
_FRAMES: Final = (3, 4)


class ReplayEnd(Enum):
    """How a replay ended."""

    COMPLETE = "complete"
    FAILED = "failed"
    ABANDONED = "abandoned"


class Replay:
    """Reads one replay; may be abandoned at any time.

    Args:
        context: whose sockets are used.
        endpoint: of the publisher's replay socket.
        start: the first number asked for, >= 0.
        config: deadlines and bounds.
        take: called with the number and the payload of each batch.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        start: int,
        config: KvFeedConfig,
        take: Callable[[int, bytes], None],
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._start = start
        self._config = config
        self._take = take
        self._request: ReplayRequest | None = None
        self._is_abandoned = False

    def abandon(self) -> None:
        """Hand in nothing more of it; `read` returns soon."""
        self._is_abandoned = True
        if self._request is not None:
            self._request.messages.wake()

    async def read(self) -> ReplayEnd:
        """Ask for the replay and read it; returns how it ended."""
        try:
            request = ReplayRequest(self._context, self._endpoint, self._config)
        except zmq.ZMQError:
            return ReplayEnd.FAILED
        self._request = request
        try:
            request.ask([b"", encode_sequence(self._start)])
            async with asyncio.timeout(self._config.replay_s):
                return await self._read(request)
        except (TimeoutError, KvEventDecodeError, zmq.ZMQError):
            return ReplayEnd.ABANDONED if self._is_abandoned else ReplayEnd.FAILED
        finally:
            self._request = None
            request.close()

    async def _read(self, request: ReplayRequest) -> ReplayEnd:
        slices = Slices(self._config.slice_s)
        while True:
            async with asyncio.timeout(self._config.replay_idle_s):
                await request.messages.wait()
            slices.begin()
            while not self._is_abandoned and (frames := request.messages.receive()) is not None:
                seq, payload = parse_replayed(frames)
                if seq == _END_SEQ:
                    return ReplayEnd.COMPLETE
                self._take(seq, payload)
                await slices.rest()
            if self._is_abandoned:
                return ReplayEnd.ABANDONED


def parse_replayed(frames: Frames) -> tuple[int, bytes]:
    """Return number and payload of a message of a replay.

    Raises:
        KvEventDecodeError: it is none.
    """
    if len(frames) not in _FRAMES:
        raise KvEventDecodeError(
            f"A message of a replay has 3 or 4 frames, this one {len(frames)}."
        )
    seq = decode_sequence(frames[-2])
    if seq < _END_SEQ:
        raise KvEventDecodeError("A sequence number is negative.")
    return seq, frames[-1]
