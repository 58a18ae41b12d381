"""One request on its way through the engine: its tokens become text, and it ends for a reason."""

from itertools import pairwise

from headstart.engines.embedded.gguf import FloatArray
from headstart.engines.embedded.request import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    OutputCallback,
)
from headstart.engines.embedded.sampler import Sampler
from headstart.engines.embedded.scheduler import SequenceState
from headstart.engines.embedded.statistics import FinishedRequest
from headstart.engines.embedded.stop_strings import StopStrings
from headstart.prompt.tokenizer import IncrementalDecoder, Tokenizer
from headstart.types import TokenId


class Generation:
    """A request's sampler, decoder, stop strings and timings; holds no blocks and no logits.

    Args:
        request: what was asked.
        callback: who is told.
        sequence: the same request as the scheduler sees it.
        tokenizer: of the model.
        end_token_ids: tokens that end the model's turn.
        default_seed: for a request without a seed.
    """

    __slots__ = (
        "_admitted_s",
        "_decoder",
        "_end_token_ids",
        "_sampler",
        "_stop",
        "_token_times_s",
        "callback",
        "request",
        "sequence",
    )

    def __init__(
        self,
        request: GenerationRequest,
        callback: OutputCallback,
        sequence: SequenceState,
        tokenizer: Tokenizer,
        end_token_ids: frozenset[int],
        default_seed: int,
    ) -> None:
        self.request = request
        self.callback = callback
        self.sequence = sequence
        self._end_token_ids = frozenset() if request.sampling.ignore_eos else end_token_ids
        self._sampler = Sampler(request.sampling, default_seed)
        self._decoder = IncrementalDecoder(tokenizer)
        self._stop = StopStrings(request.sampling.stop)
        self._admitted_s: float | None = None
        self._token_times_s: list[float] = []

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self._token_times_s)

    def admit(self, now_s: float) -> None:
        """Note that it began; only the first time counts."""
        if self._admitted_s is None:
            self._admitted_s = now_s

    def sample(self, logits: FloatArray, now_s: float) -> GenerationOutput:
        """Choose the next token and decide whether it is the last.

        Mutates: appends the token to the sequence.
        """
        token_id = self._sampler.sample(logits)
        self.sequence.table.append(token_id)
        self._token_times_s.append(now_s)
        text, reason = self._advance(token_id)
        return self.output(text, (token_id,), reason)

    def output(
        self,
        text: str,
        token_ids: tuple[TokenId, ...],
        reason: FinishReason | None,
        error: str | None = None,
    ) -> GenerationOutput:
        """Describe what has just happened to this request."""
        return GenerationOutput(
            request_id=self.request.request_id,
            text=text,
            token_ids=token_ids,
            finish_reason=reason,
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            cached_tokens=self.sequence.cached_tokens or 0,
            num_output_tokens=len(self._token_times_s),
            error=error,
        )

    def finished(
        self, reason: FinishReason, now_s: float, error: str | None = None
    ) -> FinishedRequest:
        """Sum up the request, which ends now."""
        arrival_s, times_s = self.request.arrival_s, self._token_times_s
        first_s = times_s[0] if times_s else None
        admitted_s = self._admitted_s
        return FinishedRequest(
            request_id=self.request.request_id,
            finish_reason=reason,
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            cached_tokens=self.sequence.cached_tokens or 0,
            num_output_tokens=len(times_s),
            queue_s=None if admitted_s is None else admitted_s - arrival_s,
            prefill_s=None if first_s is None or admitted_s is None else first_s - admitted_s,
            ttft_s=None if first_s is None else first_s - arrival_s,
            decode_s=None if first_s is None else times_s[-1] - first_s,
            e2e_s=now_s - arrival_s,
            inter_token_s=tuple(b - a for a, b in pairwise(times_s)),
            max_tokens=self.request.sampling.max_tokens,
            error=error,
        )

    def _advance(self, token_id: TokenId) -> tuple[str, FinishReason | None]:
        """Return the text that is now certain, and the reason to end, if there is one."""
        is_end = token_id in self._end_token_ids
        is_last = is_end or len(self._token_times_s) >= self.request.sampling.max_tokens
        text = "" if is_end else self._decoder.feed(token_id)
        if is_last:
            text += self._decoder.flush()
        text, has_stopped = self._stop.feed(text)
        if has_stopped:
            return text, "stop"
        if is_last:
            return text + self._stop.flush(), "stop" if is_end else "length"
        return text, None
