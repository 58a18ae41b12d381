"""Whether our tokens are an engine's: what evidence there is, and what follows from it.

    probe    built-in conversations, asked of `/tokenize` at the start and after trouble
    sample   now and then a real request, asked of the replica that served it
    count    every response: our number of tokens against the engine's `input_tokens`

Nothing is believed before it was checked: by all probes, or, of an engine that has no `/tokenize`
or refuses a probe, by a run of counts. One difference ends the agreement. It returns with a run of
agreeing samples and counts, twice as long after each relapse: a kind of request that is rendered
otherwise by this engine, and comes now and then, must not make it flap.
"""

from collections.abc import Sequence
from typing import Final

FIRST_RUN: Final = 8
"""Agreeing checks in a row that make an agreement without probes, or again after a difference."""

LONGEST_RUN: Final = 1024
"""So many are always enough, and after so many an old relapse is forgotten."""

_NOT_CHECKED: Final = "not compared with the engine's yet"


class TokenAgreement:
    """What is known of one replica's tokens. Not thread-safe.

    Attributes:
        is_agreed: our tokens are the engine's, as far as checks have shown.
        reason: why not; numbers and names of checks only, never text.
        num_checks: all of them.
        num_differences: those that showed a difference.
    """

    __slots__ = (
        "_is_probe_at_fault",
        "_needed",
        "_run",
        "is_agreed",
        "num_checks",
        "num_differences",
        "reason",
    )

    def __init__(self) -> None:
        self.is_agreed = False
        self.reason = _NOT_CHECKED
        self.num_checks = 0
        self.num_differences = 0
        self._run = 0
        self._needed = FIRST_RUN
        self._is_probe_at_fault = False

    def probed(self, difference: str | None) -> bool:
        """Take the result of all probes; return whether `is_agreed` changed.

        Args:
            difference: the first one found; None if every probe agreed.
        """
        if difference is not None:
            self._is_probe_at_fault = True
            return self._differs(difference)
        self.num_checks += 1
        if self.num_differences and not self._is_probe_at_fault:
            return False  # what differed was no probe, so probes say nothing of it
        return self._agree()

    def checked(self, difference: str | None) -> bool:
        """Take the result of one sample or count; return whether `is_agreed` changed."""
        if difference is not None:
            self._is_probe_at_fault = False
            return self._differs(difference)
        self.num_checks += 1
        self._run += 1
        if self.is_agreed:
            if self._run == LONGEST_RUN:
                self._needed = FIRST_RUN
            return False
        return self._run >= self._needed and self._agree()

    def counted(self, own_tokens: int, input_tokens: int) -> bool:
        """Take a response's number of tokens; return whether `is_agreed` changed.

        Cost: 0.2 us while all is well.
        """
        if own_tokens == input_tokens:
            return self.checked(None)
        return self.checked(
            f"a prompt has {own_tokens} tokens here and {input_tokens} by the engine's count"
        )

    def restarted(self) -> bool:
        """Hear that the engine may be another one; return whether `is_agreed` changed."""
        has_changed = self.is_agreed
        self.is_agreed = False
        self.reason = _NOT_CHECKED
        self.num_differences = self._run = 0
        self._needed = FIRST_RUN
        return has_changed

    def _agree(self) -> bool:
        has_changed = not self.is_agreed
        self.is_agreed = True
        self.reason = ""
        return has_changed

    def _differs(self, reason: str) -> bool:
        has_changed = self.is_agreed
        self.num_checks += 1
        self.num_differences += 1
        if has_changed and self.num_differences > 1:
            self._needed = min(2 * self._needed, LONGEST_RUN)
        self._run = 0
        self.is_agreed = False
        self.reason = reason
        return has_changed


def difference(name: str, ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """Return in words where two lists of ids part, without the ids; None if they are equal.

    Args:
        name: of the check.
        ours: our ids.
        theirs: the engine's.
    """
    if len(ours) == len(theirs) and list(ours) == list(theirs):
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    return (
        f"{name}: {len(ours)} tokens here, {len(theirs)} by the engine, "
        f"different from token {at + 1} on"
    )
