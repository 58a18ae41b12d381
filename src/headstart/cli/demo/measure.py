"""Runs a scenario with the cache off and on, and reduces the answers to the figures of one row.

"Off" is a `cache_salt` of its own for each request, so that nothing can be shared. "On" is one
salt for the scenario, new in each run, so that an earlier run leaves nothing behind. An engine
that has no salts cannot be switched off: there the first request of a scenario counts as cold
and the outputs have nothing to be compared with.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

from headstart.cli.demo.client import Answer
from headstart.cli.demo.scenarios import Scenario, request_bodies
from headstart.types import JsonObject

Ask = Callable[[JsonObject], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One row of the table; a figure that cannot be known is None.

    Attributes:
        requests: requests with the cache on.
        input_tokens: their prompt tokens, cached ones included.
        cached_tokens: how many of those the engine took from its cache.
        hit_ratio: cached / input over all of them, the first included.
        ttft_cold_s, tpot_cold_s: medians with the cache off.
        ttft_warm_s, tpot_warm_s: medians with the cache on, without the first request, which
            fills the cache.
        same_output: every answer was the same, character for character, off and on.
    """

    name: str
    requests: int
    input_tokens: int | None
    cached_tokens: int | None
    hit_ratio: float | None
    ttft_cold_s: float | None
    ttft_warm_s: float | None
    tpot_cold_s: float | None
    tpot_warm_s: float | None
    same_output: bool | None


async def run_scenario(
    scenario: Scenario, model: str, ask: Ask, *, has_salts: bool
) -> ScenarioResult:
    """Send the scenario's requests one after another, off then on, and compare."""
    if not has_salts:
        answers = await _run(scenario, model, ask, lambda: None)
        return _result(scenario.name, cold=answers[:1], warm=answers, same_output=None)
    cold = await _run(scenario, model, ask, _new_salt)
    shared_salt = _new_salt()
    warm = await _run(scenario, model, ask, lambda: shared_salt)
    same = [a.text for a in cold] == [a.text for a in warm]
    return _result(scenario.name, cold=cold[1:], warm=warm, same_output=same)


def _new_salt() -> str:
    return secrets.token_hex(16)


async def _run(
    scenario: Scenario, model: str, ask: Ask, salt: Callable[[], str | None]
) -> list[Answer]:
    answers: list[Answer] = []
    for body in request_bodies(scenario, model, answers):
        cache_salt = salt()
        answers.append(
            await ask(body if cache_salt is None else {**body, "cache_salt": cache_salt})
        )
    return answers


def _result(
    name: str, *, cold: Sequence[Answer], warm: Sequence[Answer], same_output: bool | None
) -> ScenarioResult:
    input_tokens = _total([answer.usage.input_tokens for answer in warm])
    cached_tokens = _total([answer.usage.cached_tokens for answer in warm])
    ratio = cached_tokens / input_tokens if input_tokens and cached_tokens is not None else None
    return ScenarioResult(
        name=name,
        requests=len(warm),
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        hit_ratio=ratio,
        ttft_cold_s=_median([answer.ttft_s for answer in cold]),
        ttft_warm_s=_median([answer.ttft_s for answer in warm[1:]]),
        tpot_cold_s=_median([answer.tpot_s for answer in cold]),
        tpot_warm_s=_median([answer.tpot_s for answer in warm[1:]]),
        same_output=same_output,
    )


def _total(figures: Sequence[int | None]) -> int | None:
    """Add up; one unknown figure makes the sum unknown."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _median(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return median(known) if known else None
