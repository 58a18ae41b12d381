"""Figures that the embedded engine reports: of itself now, and of each request when it ends."""

from dataclasses import dataclass

from headstart.engines.embedded.request import FinishReason


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A snapshot taken between two steps; the token and block counts only grow.

    Attributes:
        num_running: requests that hold KV blocks.
        num_waiting: requests that were accepted and hold none (queued, held back or preempted).
        kv_usage_ratio: blocks held by running requests over all blocks, 0..1.
        num_blocks: blocks in the pool.
        block_size: tokens per block.
        num_cached_blocks: blocks whose contents can be reused now, held or not.
        prefix_cache_queries_tokens: prompt tokens that were looked up; 0 with caching off.
        prefix_cache_hits_tokens: prompt tokens that were found.
        prompt_tokens: prompt tokens of requests whose prefill is done, cached included.
        cached_prompt_tokens: how many of these were found in the cache.
        generation_tokens: tokens sampled.
        prefilled_tokens: tokens computed before sampling, recomputation after preemption included.
        preemptions: times a running request lost its blocks to an older one.
        evicted_blocks: cached blocks that lost their contents to make room.
    """

    num_running: int
    num_waiting: int
    kv_usage_ratio: float
    num_blocks: int
    block_size: int
    num_cached_blocks: int
    prefix_cache_queries_tokens: int
    prefix_cache_hits_tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int
    generation_tokens: int
    prefilled_tokens: int
    preemptions: int
    evicted_blocks: int


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What one request cost, once, when it ended; its text is not part of it.

    Attributes:
        request_id: whose.
        finish_reason: how it ended.
        num_prompt_tokens: length of the prompt.
        cached_tokens: prompt tokens whose KV was reused.
        num_output_tokens: tokens sampled.
        queue_s: arrival to first admission; None if it was never admitted.
        prefill_s: first admission to first token; None if there was none.
        ttft_s: arrival to first token; None if there was none.
        decode_s: first to last token; None if there was none.
        e2e_s: arrival to end.
        inter_token_s: each gap between two tokens, in order.
        max_tokens: the request's own limit.
        error: message if the engine failed on it, else None.
    """

    request_id: str
    finish_reason: FinishReason
    num_prompt_tokens: int
    cached_tokens: int
    num_output_tokens: int
    queue_s: float | None
    prefill_s: float | None
    ttft_s: float | None
    decode_s: float | None
    e2e_s: float
    inter_token_s: tuple[float, ...]
    max_tokens: int
    error: str | None = None
