"""What the embedded engine is asked, and what it answers, token by token."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from headstart.types import TokenId

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    Attributes:
        temperature: >= 0; 0 is greedy.
        top_p: 0 < top_p <= 1; smallest set of tokens with at least this probability.
        top_k: keep the k most probable; 0 keeps all.
        seed: makes sampling repeatable; None draws one.
        stop: strings that end generation; the output ends before the first of them.
        max_tokens: >= 1.
        ignore_eos: go on after the model's end token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 16
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate.

    Attributes:
        request_id: unique among running requests.
        prompt_token_ids: at least one; with `max_tokens` at most the model's context.
        sampling: how and how much.
        cache_salt: isolates the KV of this prompt: only requests with the same salt share it.
        arrival_s: monotonic time of arrival, for queue time.
    """

    request_id: str
    prompt_token_ids: tuple[TokenId, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    cache_salt: str | None = None
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """One step of one sequence.

    Attributes:
        request_id: whose.
        text: decoded characters that are now certain (no partial UTF-8, no possible stop string).
        token_ids: tokens this step added (the end token included).
        finish_reason: set on the last output of a request only.
        num_prompt_tokens: length of the prompt.
        cached_tokens: prompt tokens whose KV was reused.
        num_output_tokens: tokens generated so far.
        error: message if the engine failed on this request, else None.
    """

    request_id: str
    text: str
    token_ids: tuple[TokenId, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    cached_tokens: int
    num_output_tokens: int
    error: str | None = None


OutputCallback = Callable[[GenerationOutput], None]
"""Called on the engine's thread; must not block."""
