"""The mix of SAECache: chats, agents, and single questions with and without a template.

    chat          system · (user · answer)…            gaps of minutes
    agentic       system · user · (answer · tool)…     gaps of seconds
    templated     system · user                        once
    untemplated   user                                 once

After each answer the model thinks aloud; that is generated and left out of the next prompt. System
prompts are from a pool, drawn by Zipf's law.

From the source are the shares, the mean lengths, the gaps, the sizes of templates and of tool
outputs, and Zipf's exponent. It does not say how far lengths scatter, how many turns there are, how
multi-turn sessions divide into chats and agents and single questions into templated and not, how
many templates there are, and how long thoughts are: those are ours, and the defaults say which.

Source: arXiv:2605.18825.
"""

from itertools import accumulate
from random import Random
from typing import Final

import msgspec

from headstart.simulator.generators.growing_prompt import GrowingPrompt, draw_length, draw_turns
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest, timed_trace


class SemanticMixConfig(msgspec.Struct, frozen=True):
    """The mix and its load.

    Attributes:
        name: of the trace.
        multi_turn_ratio: of sessions, 0..1.
        user_tokens: of a user's turn on the mean, log-normal.
        answer_tokens: of an answer without thoughts, likewise.
        num_sessions: single questions included; >= 1.
        sessions_per_s: that start, as a Poisson process, > 0.
        agentic_ratio: of multi-turn sessions.
        templated_ratio: of single questions.
        chat_turns: of a chat on the mean, geometric, >= 1.
        agentic_turns: of an agent, likewise.
        length_sigma: of the logarithm of lengths.
        thought_tokens: after each answer, on the mean, log-normal.
        num_templates: in the pool, >= 1.
        zipf: exponent.
        template_tokens: (least, most), uniform.
        tool_tokens: likewise, of a tool's output.
        chat_gap: (mu, sigma) of the logarithm of the seconds between two requests of a chat.
        agentic_gap: likewise of an agent.
        block_tokens: in a block.
    """

    name: str
    multi_turn_ratio: float
    user_tokens: float
    answer_tokens: float
    num_sessions: int = 1000
    sessions_per_s: float = 1.0
    agentic_ratio: float = 0.5
    templated_ratio: float = 0.5
    chat_turns: float = 4.0
    agentic_turns: float = 8.0
    length_sigma: float = 1.0
    thought_tokens: float = 200.0
    num_templates: int = 100
    zipf: float = 1.0
    template_tokens: tuple[int, int] = (200, 2000)
    tool_tokens: tuple[int, int] = (200, 2000)
    chat_gap: tuple[float, float] = (4.82, 1.25)
    agentic_gap: tuple[float, float] = (2.28, 1.34)
    block_tokens: int = 16


SHAREGPT: Final = SemanticMixConfig("semantic-mix-sharegpt", 0.74, 113, 305)
LMSYS: Final = SemanticMixConfig("semantic-mix-lmsys", 0.33, 63, 179)
ARENA: Final = SemanticMixConfig("semantic-mix-arena", 0.12, 36, 155)


def semantic_mix(config: SemanticMixConfig, seed: int) -> Trace:
    """Draw a trace; it is timed.

    Args:
        config: its shape; `SHAREGPT`, `LMSYS` and `ARENA` are the published ones.
        seed: of all draws.
    """
    mix = _Mix(config, Random(f"semantic mix {seed}"))
    requests: list[TraceRequest] = []
    for session in range(config.num_sessions):
        requests += mix.session(session)
    return timed_trace(config.name, config.block_tokens, requests)


class _Mix:
    """Draws sessions one after another."""

    def __init__(self, config: SemanticMixConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._tree = PrefixTree()
        self._now_s = 0.0
        self._templates = [self._template() for _ in range(config.num_templates)]
        ranks = range(1, config.num_templates + 1)
        self._weights = list(accumulate(rank**-config.zipf for rank in ranks))

    def session(self, number: int) -> list[TraceRequest]:
        config, rng = self._config, self._rng
        self._now_s += rng.expovariate(config.sessions_per_s)
        if rng.random() < config.multi_turn_ratio:
            if rng.random() < config.agentic_ratio:
                turns = draw_turns(rng, config.agentic_turns)
                return self._turns(number, turns, is_templated=True, is_agentic=True)
            turns = draw_turns(rng, config.chat_turns)
            return self._turns(number, turns, is_templated=True, is_agentic=False)
        is_templated = rng.random() < config.templated_ratio
        return self._turns(number, 1, is_templated=is_templated, is_agentic=False)

    def _turns(
        self, number: int, num_turns: int, *, is_templated: bool, is_agentic: bool
    ) -> list[TraceRequest]:
        config, rng = self._config, self._rng
        prompt = self._prompt(is_templated=is_templated)
        mu, sigma = config.agentic_gap if is_agentic else config.chat_gap
        at_s = self._now_s
        requests = []
        for turn in range(num_turns):
            if is_agentic and turn:
                prompt.grow(rng.randint(*config.tool_tokens))
            else:
                prompt.grow(draw_length(rng, config.user_tokens, config.length_sigma))
            answer = draw_length(rng, config.answer_tokens, config.length_sigma)
            thought = draw_length(rng, config.thought_tokens, config.length_sigma)
            requests.append(
                TraceRequest(at_s, prompt.num_tokens, answer + thought, prompt.blocks, number)
            )
            prompt.grow(answer)
            at_s += rng.lognormvariate(mu, sigma)
        return requests

    def _template(self) -> GrowingPrompt:
        template = GrowingPrompt(self._tree, self._config.block_tokens)
        template.grow(self._rng.randint(*self._config.template_tokens))
        return template

    def _prompt(self, *, is_templated: bool) -> GrowingPrompt:
        if not is_templated:
            return GrowingPrompt(self._tree, self._config.block_tokens)
        (template,) = self._rng.choices(self._templates, cum_weights=self._weights)
        return template.fork()
