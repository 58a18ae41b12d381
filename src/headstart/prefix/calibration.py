"""How right predictions are, and what the engine's own figures correct.

Theory of operation: every answer says how much of its prompt came from the cache. Against what the
index held when the prompt was sent (`entries.Standing`) that is evidence of one of these:

    as predicted     nothing to do; where a block was not known exactly, its tokens are now
    less             the block at which the cache ended, and after it, was evicted: whatever was
                     not used since that one was used is older and therefore gone too
    nothing at all,  the replica was reset or restarted: all that is known of it is void. Eviction
    and the first    cannot be the reason where fewer tokens were computed since the first block
    block is young   was used than half of the cache has room for
    more             it keeps more than we do, or others send to it as well

Only what was warm is evidence: a promise that was not kept says something about the engine's queue
and not about its cache. A second failure counts only for a prompt sent after the first was seen,
or what ten requests in flight tell of one reset would wipe out ten times what was learned since.

The capacity believed in sinks to what is known to be there when something was evicted, and a
quarter more; half-way each time, and not below 0.7 of what the engine itself says. It rises by a
tenth whenever the engine has what we have dropped. Rather too high than too low: a prototype lost
3 to 35 % of P90 at twice the true capacity and a factor of four at half of it. Of an engine that
does not say, eviction and reset cannot be told apart at first: both void all that is known, and
lower what was assumed, until evictions show for what they are.

An engine that does not report cached tokens (`None`) teaches nothing here.
"""

from enum import Enum
from typing import Final

import msgspec

from headstart.prefix.config import PrefixConfig
from headstart.prefix.entries import Standing
from headstart.prefix.time_to_live import TimeToLive
from headstart.prefix.token_counts import TokenScale

_GAIN: Final = 0.05
"""Of moving averages: about the last 20 answers."""

_TOLERANCE_RATIO: Final = 0.125
"""Of what was predicted may be missing without being evidence: tokens of blocks are estimates."""

_KNOWN_RANGE: Final = (0.7, 2.0)
"""Capacity believed in, over what the engine says."""

_LEAST_CAPACITY_TOKENS: Final = 16_384
"""Below this no guess goes; an engine that says so has what it says."""

_CAPACITY_SLACK: Final = 1.25
_CAPACITY_RISE: Final = 1.1
_ASSUMED_CAPACITY_RISE: Final = 1.5

_OUTPUT_PRIOR: Final = 0.6
_OUTPUT_GAIN: Final = 0.2


class Verdict(Enum):
    """What an answer is evidence of."""

    NOTHING = "nothing"
    KEPT = "kept"
    """What was believed to be there was there, to within what can be told."""
    EVICTED = "evicted"
    """The end of it was not."""
    GONE = "gone"
    """Nothing of it was, for lack of room."""
    RESET = "reset"
    """Nothing of it was, and room is not the reason."""
    MORE = "more"
    """There was more."""


class CalibrationStatistics(msgspec.Struct, frozen=True):
    """How right one replica's predictions were. Errors are predicted - reported, in tokens.

    Attributes:
        num_answers: with a figure to compare.
        num_unknown: without.
        num_off: off by more than a block.
        error_tokens: sum of errors; over `num_answers` it is the bias.
        absolute_error_tokens: sum of their absolute values.
        recent_bias_tokens: moving average of errors.
        recent_absolute_error_tokens: of their absolute values.
        num_evictions: answers that showed an eviction.
        num_resets: answers that showed a reset.
        capacity_tokens: believed in now.
        tokens_per_byte: of its prompts' JSON.
        ttl_s: of unused entries; None: no end.
    """

    num_answers: int
    num_unknown: int
    num_off: int
    error_tokens: int
    absolute_error_tokens: int
    recent_bias_tokens: float
    recent_absolute_error_tokens: float
    num_evictions: int
    num_resets: int
    capacity_tokens: int
    tokens_per_byte: float
    ttl_s: float | None

    @property
    def off_ratio(self) -> float:
        """Share of answers off by more than a block."""
        return self.num_off / self.num_answers if self.num_answers else 0.0


class Calibration:
    """What answers taught of one replica; corrects nothing itself (`prefix.view` does).

    Attributes:
        block_size: tokens per block.
        scale: tokens per byte.
        capacity_tokens: believed in.
    """

    __slots__ = (
        "_absolute",
        "_absolute_sum",
        "_bias",
        "_capacity_rise",
        "_error_sum",
        "_last_failure_at",
        "_least_capacity",
        "_most_capacity",
        "_num_answers",
        "_num_failures",
        "_num_off",
        "_num_unknown",
        "_output_reuse",
        "_ttl",
        "block_size",
        "capacity_tokens",
        "num_evictions",
        "num_resets",
        "scale",
    )

    def __init__(self, config: PrefixConfig) -> None:
        self.block_size = config.default_block_size
        self.scale = TokenScale()
        self.capacity_tokens = config.default_capacity_tokens
        self._least_capacity = min(_LEAST_CAPACITY_TOKENS, config.default_capacity_tokens)
        self._most_capacity = config.default_capacity_tokens
        self._capacity_rise = _ASSUMED_CAPACITY_RISE
        self._ttl = TimeToLive(config.ttl_s)
        self._output_reuse = _OUTPUT_PRIOR
        self._last_failure_at = float("-inf")
        self._num_failures = 0  # in a row, with nothing there at all
        self._num_answers = self._num_unknown = self._num_off = 0
        self._error_sum = self._absolute_sum = 0
        self._bias = self._absolute = 0.0
        self.num_evictions = self.num_resets = 0

    @property
    def reuses_output(self) -> bool:
        """Whether what was generated is mostly found in the cache when the conversation goes on."""
        return self._output_reuse >= 0.5

    @property
    def is_capacity_known(self) -> bool:
        """Whether the engine has said what it holds."""
        return self._capacity_rise == _CAPACITY_RISE

    @property
    def ttl_s(self) -> float | None:
        """How long something unused lives; None: until there is no room."""
        return self._ttl.ttl_s

    def know_capacity(self, capacity_tokens: int) -> None:
        """Take what the engine says of itself, or what is configured."""
        low, high = _KNOWN_RANGE
        self._least_capacity = int(low * capacity_tokens)
        self._most_capacity = int(high * capacity_tokens)
        self._capacity_rise = _CAPACITY_RISE
        self.capacity_tokens = capacity_tokens

    def compare(self, predicted: int, cached_tokens: int | None) -> None:
        """Count the error of what requests were routed by."""
        if cached_tokens is None:
            self._num_unknown += 1
            return
        error = predicted - cached_tokens
        size = abs(error)
        self._num_answers += 1
        self._error_sum += error
        self._absolute_sum += size
        self._bias += _GAIN * (error - self._bias)
        self._absolute += _GAIN * (size - self._absolute)
        if size > self.block_size:
            self._num_off += 1

    def judge(self, standing: Standing, cached_tokens: int, input_tokens: int | None) -> Verdict:
        """Say what an answer is evidence of.

        Mutates: the count of failures and the time to live.
        """
        held = standing.warm_tokens
        if input_tokens is not None and held >= input_tokens:
            held = input_tokens - 1
        missing, few = held - cached_tokens, 2 * self.block_size
        if missing > few and missing > held * _TOLERANCE_RATIO:
            if standing.sent_at <= self._last_failure_at:
                return Verdict.NOTHING
            return self._judge_missing(standing, cached_tokens, held)
        more = cached_tokens - standing.tokens - standing.extra_tokens
        if more > few and more > standing.tokens * _TOLERANCE_RATIO:
            if standing.depth == 0:
                self._ttl.unexpected()
            return Verdict.MORE
        if not standing.warm_depth:
            return Verdict.NOTHING
        if standing.warm_depth == standing.depth:
            self._num_failures = 0
            if standing.root is not None:
                self._ttl.hit(standing.sent_at - standing.root.at)
        return Verdict.KEPT

    def failure_seen(self, now: float) -> None:
        """Note when a failure was acted upon: prompts sent before tell of the same one."""
        self._last_failure_at = now

    def learn_output(self, standing: Standing, cached_tokens: int) -> None:
        """Take in whether what the engine generated was found again, where that can be told."""
        extra = standing.extra_tokens
        if extra >= 2 * self.block_size:
            is_found = cached_tokens >= standing.tokens + extra // 2
            self._output_reuse += _OUTPUT_GAIN * (is_found - self._output_reuse)

    def lower_capacity(self, held_tokens: int) -> None:
        """Take in that something was evicted while no more than `held_tokens` were younger."""
        target = max(int(_CAPACITY_SLACK * held_tokens), self._least_capacity)
        if target < self.capacity_tokens:
            self.capacity_tokens = (self.capacity_tokens + target) // 2

    def raise_capacity(self) -> None:
        """Take in that the engine has kept what we have dropped for lack of room."""
        self.capacity_tokens = min(
            int(self.capacity_tokens * self._capacity_rise), self._most_capacity
        )

    def statistics(self) -> CalibrationStatistics:
        """Return figures."""
        return CalibrationStatistics(
            num_answers=self._num_answers,
            num_unknown=self._num_unknown,
            num_off=self._num_off,
            error_tokens=self._error_sum,
            absolute_error_tokens=self._absolute_sum,
            recent_bias_tokens=self._bias,
            recent_absolute_error_tokens=self._absolute,
            num_evictions=self.num_evictions,
            num_resets=self.num_resets,
            capacity_tokens=self.capacity_tokens,
            tokens_per_byte=self.scale.tokens_per_byte,
            ttl_s=self._ttl.ttl_s,
        )

    def check_integrity(self) -> None:
        """Assert that every correction is within its bounds."""
        assert self._least_capacity <= self.capacity_tokens <= self._most_capacity
        assert 0 <= self._output_reuse <= 1
        assert self._num_off <= self._num_answers
        assert abs(self._error_sum) <= self._absolute_sum

    def _judge_missing(self, standing: Standing, cached_tokens: int, held: int) -> Verdict:
        root = standing.root
        assert root is not None, "something was held"
        is_all_gone = cached_tokens < min(2 * self.block_size, held)
        self._num_failures = self._num_failures + 1 if is_all_gone else 0
        is_young = standing.clock - root.clock <= self.capacity_tokens // 2
        if is_all_gone and (is_young or self._num_failures > 1):
            self._ttl.missed(standing.sent_at - root.at)
            self.num_resets += 1
            self._num_failures = 0
            return Verdict.RESET
        self.num_evictions += 1
        return Verdict.GONE if is_all_gone else Verdict.EVICTED
