"""Chats: sessions of turns behind a few system prompts, each turn's prompt the one before and more.

The answer is part of the next prompt, as chat clients send it.
"""

from random import Random

import msgspec

from headstart.simulator.generators.growing_prompt import GrowingPrompt, draw_length, draw_turns
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest, timed_trace


class MultiTurnConfig(msgspec.Struct, frozen=True):
    """Chats and their load.

    Attributes:
        name: of the trace.
        num_sessions: >= 1.
        sessions_per_s: that start, as a Poisson process, > 0.
        mean_turns: of a session, geometric, >= 1.
        num_systems: system prompts; each session has one, all equally often.
        system_tokens: in each of them.
        user_tokens: of a user's turn on the mean, log-normal.
        output_tokens: of an answer, likewise.
        length_sigma: of the logarithm of both.
        gap_mu: of the logarithm of the seconds from one request to the next of its session.
        gap_sigma: of it likewise.
        max_input_tokens: a session ends before a prompt would be longer.
        block_tokens: in a block.
    """

    name: str = "multi-turn"
    num_sessions: int = 500
    sessions_per_s: float = 1.0
    mean_turns: float = 5.0
    num_systems: int = 10
    system_tokens: int = 1000
    user_tokens: float = 113.0
    output_tokens: float = 305.0
    length_sigma: float = 1.0
    gap_mu: float = 4.82
    gap_sigma: float = 1.25
    max_input_tokens: int = 32_768
    block_tokens: int = 16


def multi_turn(config: MultiTurnConfig, seed: int) -> Trace:
    """Draw a trace; it is timed.

    Args:
        config: its shape. Lengths and gaps are those of chats in arXiv:2605.18825 by default.
        seed: of all draws.
    """
    rng = Random(f"multi turn {seed}")
    tree = PrefixTree()
    systems = [GrowingPrompt(tree, config.block_tokens) for _ in range(config.num_systems)]
    for system in systems:
        system.grow(config.system_tokens)
    requests: list[TraceRequest] = []
    start_s = 0.0
    for session in range(config.num_sessions):
        start_s += rng.expovariate(config.sessions_per_s)
        requests += _session(config, rng, rng.choice(systems).fork(), session, start_s)
    return timed_trace(config.name, config.block_tokens, requests)


def _session(
    config: MultiTurnConfig, rng: Random, prompt: GrowingPrompt, session: int, at_s: float
) -> list[TraceRequest]:
    requests: list[TraceRequest] = []
    for _ in range(draw_turns(rng, config.mean_turns)):
        prompt.grow(draw_length(rng, config.user_tokens, config.length_sigma))
        if requests and prompt.num_tokens > config.max_input_tokens:
            break
        output_tokens = draw_length(rng, config.output_tokens, config.length_sigma)
        requests.append(
            TraceRequest(at_s, prompt.num_tokens, output_tokens, prompt.blocks, session)
        )
        prompt.grow(output_tokens)
        at_s += rng.lognormvariate(config.gap_mu, config.gap_sigma)
    return requests
