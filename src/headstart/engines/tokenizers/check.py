"""Keeps watch over whether one replica's tokens are ours, and says so when that changes.

A probe at the start, and again whenever the engine may be another one; every response's count; and
a real request now and then, which goes to the replica that has just served it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from headstart.engines.tokenizers.comparison import TokenizeComparer
from headstart.errors import UpstreamError
from headstart.prompt.token_agreement import TokenAgreement

_log = logging.getLogger(__name__)

_RETRY_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Pauses before the probes are tried again, of an engine that does not answer; then the last."""

_BODY: Final = msgspec.json.Decoder(dict[str, object])
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

TellAgreement = Callable[[bool, str], None]
"""Hears whether the tokens agree, and why not; each time that it changes."""


class CheckStatistics(msgspec.Struct, frozen=True):
    """What is known of one replica's tokens.

    Attributes:
        is_agreed: they are ours.
        reason: why not; empty if they are.
        num_checks: comparisons and counts.
        num_differences: those that showed a difference.
        num_samples: real requests that were compared.
    """

    is_agreed: bool
    reason: str
    num_checks: int
    num_differences: int
    num_samples: int


class TokenCheck:
    """Checks one replica.

    Args:
        name: of the replica, for the log.
        model: what it serves, by its first name.
        comparer: asks it.
        sample_s: at most one real request in so long; 0 compares none.
        tell: hears of changes.
    """

    def __init__(
        self,
        name: str,
        model: str,
        comparer: TokenizeComparer,
        sample_s: float,
        tell: TellAgreement,
    ) -> None:
        self._name = name
        self._model = model
        self._comparer = comparer
        self._sample_s = sample_s
        self._tell = tell
        self._agreement = TokenAgreement()
        self._due = asyncio.Event()
        self._due.set()
        self._next_sample = 0.0
        self._num_samples = 0
        self._has_said = False
        self._sample: asyncio.Task[None] | None = None

    @property
    def is_agreed(self) -> bool:
        """Our tokens are the engine's, as far as checks have shown."""
        return self._agreement.is_agreed

    def statistics(self) -> CheckStatistics:
        """Return what is known."""
        agreement = self._agreement
        return CheckStatistics(
            agreement.is_agreed,
            agreement.reason,
            agreement.num_checks,
            agreement.num_differences,
            self._num_samples,
        )

    async def run(self) -> None:
        """Probe when it is due, until cancelled."""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                await self._probe()
        finally:
            await self._end_sample()

    def restarted(self) -> None:
        """Hear that the engine was away and may be another one: nothing is known of it any more."""
        if self._agreement.restarted():
            self._say()
        self._due.set()

    def answered(self, own_tokens: int, input_tokens: int) -> None:
        """Hear of a response's count.

        Args:
            own_tokens: of its prompt, by us.
            input_tokens: of its prompt, by the engine.
        """
        if self._agreement.counted(own_tokens, input_tokens):
            self._say()

    def wants_sample(self, now: float) -> bool:
        """Return whether a request that is sent now should be offered after its response.

        Args:
            now: monotonic seconds.
        """
        return self._sample_s > 0 and now >= self._next_sample

    def sample(self, model: str, body: bytes, now: float, *, is_chat: bool) -> None:
        """Compare a request that this replica has served; does nothing if none is due.

        Args:
            model: as the request names it.
            body: of the request.
            now: monotonic seconds.
            is_chat: a chat request.
        """
        if not self.wants_sample(now) or (self._sample is not None and not self._sample.done()):
            return
        self._next_sample = now + self._sample_s
        self._sample = asyncio.get_running_loop().create_task(
            self._compare(model, body, is_chat), name=f"token sample {self._name}"
        )

    async def _probe(self) -> None:
        attempt = 0
        while True:
            try:
                found = await self._comparer.probe(self._model)
            except UpstreamError as error:
                _log.debug("replica %s: tokens not compared: %s", self._name, error.message)
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
                attempt += 1
                continue
            if not found.num_compared:
                _log.info(
                    "replica %s: no probe can be compared with its /tokenize; "
                    "the counts of its answers must do",
                    self._name,
                )
            else:
                self._take(self._agreement.probed(found.difference), found.difference)
            return

    async def _compare(self, model: str, data: bytes, is_chat: bool) -> None:
        with contextlib.suppress(UpstreamError, *_UNREADABLE):
            body = await asyncio.to_thread(_BODY.decode, data)
            found = await self._comparer.compare("a sample", model, body, is_chat=is_chat)
            if found.num_compared:
                self._num_samples += 1
                self._take(self._agreement.checked(found.difference), found.difference)

    def _take(self, has_changed: bool, difference: str | None) -> None:
        # A first difference changes nothing, as nothing was believed yet; it is said all the same.
        if has_changed or (difference is not None and not self._has_said):
            self._say()

    def _say(self) -> None:
        self._has_said = True
        agreement = self._agreement
        if agreement.is_agreed:
            _log.info("replica %s: its tokens are ours", self._name)
        else:
            _log.warning(
                "replica %s: its tokens are not known to be ours (%s); "
                "its prefixes are judged approximately",
                self._name,
                agreement.reason,
            )
        self._tell(agreement.is_agreed, agreement.reason)

    async def _end_sample(self) -> None:
        if self._sample is not None:
            self._sample.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sample
