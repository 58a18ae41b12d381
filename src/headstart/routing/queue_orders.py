"""Which of those that wait goes next.

    fcfs    the oldest
    lpm     the longest match on what has room; of equals the oldest
    k_lpm   the oldest, then k − 1 times the longest match, and so on
    dlpm    as lpm, among tenants that have not had more than their share

Theory of operation: an order by prefix serves those together that can use the same blocks while
these are there. It also shows by when a request is served that somebody else's prefix is cached, so
it must not look across those who may not share: all orders take the group from which one goes by
who has waited longest, and look at matches within that group only. A prefix that nobody asks for
any more would starve the others; `age_s` of the queue bounds that for every order.

Ties go to the oldest, which is not a detail: in a published replay at eight requests per second
P99 was 89 s with arbitrary ties and 30 s with the oldest first.

What they do not do: they do not know replicas or models. Whoever asks shows them only those that
can go now, in the order of arrival, and tells them what matches.

Sources: LPM, arXiv:2312.07104 §3; k-LPM, arXiv:2502.04677 §4; DLPM, arXiv:2501.14312 §4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

QueueOrderName = Literal["fcfs", "lpm", "k_lpm", "dlpm"]

MAX_TENANTS: Final = 1024
"""Whose share `dlpm` remembers, besides those that wait."""


class Waiting(Protocol):
    """One that waits (`queue.Place`)."""

    @property
    def group(self) -> str:
        """Whose cached prefixes it may use: all of one group share them."""
        ...

    @property
    def tenant(self) -> str:
        """For whom it counts."""
        ...


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Match:
    """What a request would find.

    Attributes:
        matched_tokens: on the best replica that has room.
        input_tokens: of its prompt.
    """

    matched_tokens: int
    input_tokens: int


class QueueOrder(Protocol):
    """Picks one of several."""

    @property
    def looks_at_matches(self) -> bool:
        """It has to be shown more than the oldest."""
        ...

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
        """Return the one that goes next; it is taken to go.

        Args:
            waiting: can all go now, in the order of arrival; at least one.
            match_of: looks a prompt up; asked at most once for each.

        Cost: O(waiting), each a look-up.
        """
        ...

    def charge(self, tenant: str, tokens: int) -> None:
        """Hear what a request cost its tenant that could not be known when it went."""
        ...


class FirstComeFirstServed:
    """See the module."""

    __slots__ = ()

    @property
    def looks_at_matches(self) -> bool:
        """It does not."""
        return False

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:  # noqa: ARG002
        """Return the oldest."""
        return waiting[0]

    def charge(self, tenant: str, tokens: int) -> None:
        """Nobody has a share."""


class LongestPrefixMatch:
    """`lpm`, and `k_lpm` if `k` is given.

    Args:
        k: every so many turns the oldest goes, >= 1; None: never for that reason. 1 is `fcfs`.
    """

    __slots__ = ("_k", "_turn")

    def __init__(self, k: int | None = None) -> None:
        assert k is None or k >= 1
        self._k = k
        self._turn = -1

    @property
    def looks_at_matches(self) -> bool:
        """It does."""
        return True

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
        """Return the longest match in the group of the oldest, or the oldest in its turn."""
        oldest = waiting[0]
        if self._k is not None:
            self._turn = (self._turn + 1) % self._k
            if self._turn == 0:
                return oldest
        return longest_match([one for one in waiting if one.group == oldest.group], match_of)[0]

    def charge(self, tenant: str, tokens: int) -> None:
        """Nobody has a share."""


class DeficitLongestPrefixMatch:
    """`dlpm`: a tenant whose deficit is used up waits until all who wait have used up theirs.

    A tenant is charged the uncached tokens of its prompts when they go, and what was generated when
    that is known. When nobody who waits has anything left, all who wait get a quantum; nobody keeps
    more than one.

    Args:
        quantum_tokens: >= 1; small is fair, large keeps prefixes together.
    """

    __slots__ = ("_deficits", "_quantum_tokens")

    def __init__(self, quantum_tokens: int) -> None:
        assert quantum_tokens >= 1
        self._quantum_tokens = quantum_tokens
        self._deficits: dict[str, int] = {}

    @property
    def looks_at_matches(self) -> bool:
        """It does."""
        return True

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
        """Return the longest match in the group of the oldest whose tenant has something left."""
        tenants = {one.tenant for one in waiting}
        self._refill(tenants)
        served = [one for one in waiting if self.deficit(one.tenant) > 0]
        group = served[0].group
        best, match = longest_match([one for one in served if one.group == group], match_of)
        self.charge(best.tenant, max(match.input_tokens - match.matched_tokens, 1))
        return best

    def deficit(self, tenant: str) -> int:
        """Return the tokens that a tenant may use before the others have had their turn."""
        return self._deficits.get(tenant, self._quantum_tokens)

    def charge(self, tenant: str, tokens: int) -> None:
        """Take tokens off a tenant's deficit."""
        self._deficits[tenant] = self.deficit(tenant) - tokens
        if len(self._deficits) > MAX_TENANTS:
            # Whoever has most left loses least by being forgotten.
            del self._deficits[max(self._deficits, key=self._deficits.__getitem__)]

    def check_integrity(self) -> None:
        """Assert the bounds."""
        assert len(self._deficits) <= MAX_TENANTS
        assert all(left <= self._quantum_tokens for left in self._deficits.values())

    def _refill(self, tenants: set[str]) -> None:
        """Give those who wait so many quanta that one of them has something left."""
        most = max(self.deficit(tenant) for tenant in tenants)
        if most > 0:
            return
        quantum = self._quantum_tokens
        added = (-most // quantum + 1) * quantum
        for tenant in tenants:
            self._deficits[tenant] = min(self.deficit(tenant) + added, quantum)


def longest_match(waiting: Sequence[W], match_of: Callable[[W], Match]) -> tuple[W, Match]:
    """Return the first of those that match most, and its match."""
    best, most = waiting[0], match_of(waiting[0])
    for one in waiting[1:]:
        match = match_of(one)
        if match.matched_tokens > most.matched_tokens:
            best, most = one, match
    return best, most
