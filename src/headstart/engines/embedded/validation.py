"""Refuse requests that the engine cannot carry out, before they cost anything."""

import math

from headstart.engines.embedded.request import GenerationRequest, SamplingParams
from headstart.errors import BadRequest, ContextOverflow


def check_request(request: GenerationRequest, context_length: int, vocab_size: int) -> None:
    """Check a request against the model.

    Args:
        request: what a client asks.
        context_length: tokens that prompt and output may have together.
        vocab_size: one more than the largest token id.

    Raises:
        BadRequest: the prompt is empty, or a parameter is out of range.
        ContextOverflow: prompt and output do not fit.
    """
    num_prompt, sampling = len(request.prompt_token_ids), request.sampling
    if num_prompt == 0:
        raise BadRequest("the prompt has no tokens; send at least one", param="prompt")
    _check_sampling(sampling)
    if num_prompt + sampling.max_tokens > context_length:
        raise ContextOverflow(
            f"this model's context is {context_length} tokens; {num_prompt + sampling.max_tokens} "
            f"were requested ({num_prompt} in the prompt, {sampling.max_tokens} to generate); "
            "shorten the prompt or lower max_tokens",
            param="messages",
        )
    outside = next((t for t in request.prompt_token_ids if not 0 <= t < vocab_size), None)
    if outside is not None:
        raise BadRequest(
            f"token id {outside} is outside the vocabulary of {vocab_size}", param="prompt"
        )


def _check_sampling(sampling: SamplingParams) -> None:
    if not (sampling.temperature >= 0 and math.isfinite(sampling.temperature)):
        raise BadRequest(
            f"temperature is {sampling.temperature}; it must be 0 or more", param="temperature"
        )
    if not 0 < sampling.top_p <= 1:
        raise BadRequest(
            f"top_p is {sampling.top_p}; it must be above 0 and at most 1", param="top_p"
        )
    if sampling.top_k < 0:
        raise BadRequest(f"top_k is {sampling.top_k}; it must be 0 (all) or more", param="top_k")
    if sampling.max_tokens < 1:
        raise BadRequest(
            f"max_tokens is {sampling.max_tokens}; it must be 1 or more", param="max_tokens"
        )
    if "" in sampling.stop:
        raise BadRequest("a stop string is empty; leave it out", param="stop")
