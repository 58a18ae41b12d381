"""Which of those that wait goes next.

    fcfs    the oldest
    lpm     the longest match on what has room; of equals the oldest
    k_lpm   the oldest, then k − 1 times the longest match, and so on
    dlpm    as lpm, among tenants that have not had more than their share

Theory of operation: an order by prefix serves those together that can use the same blocks while
these are there. It also shows by when a request is served that somebody else's prefix is cached, so
it must not move those who may not share. An order is therefore only shown requests of one group;
whose turn it is, among groups, models and priorities, the queue knows (`queue.WaitQueue`, which has
no clock either: gateway and simulator drive the same). A prefix that nobody asks for any more would
starve; `age_s` of the queue bounds that for every order.

Ties go to the oldest, which is not a detail: in a published replay at eight requests per second
P99 was 89 s with arbitrary ties and 30 s with the oldest first.

What they do not do: they do not know replicas or models, and look nothing up by themselves.

Sources: LPM, arXiv:2312.07104 §3; k-LPM, arXiv:2502.04677 §4; DLPM, arXiv:2501.14312 §4.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

QueueOrderName = Literal["fcfs", "lpm", "k_lpm", "dlpm"]

MAX_TENANTS: Final = 1024
"""Whose share `dlpm` remembers."""

MAX_GROUPS: Final = 1024
"""Of which `k_lpm` remembers how long ago the oldest went."""

MAX_DEBT_QUANTA: Final = 4
"""A tenant that owes more is charged nothing further, so that it does not wait for ever."""


class Waiting(Protocol):
    """One that waits (`queue.Place`)."""

    @property
    def group(self) -> str:
        """Whose cached prefixes it may use: all of one group share them."""
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


NO_MATCH: Final = Match(0, 0)


class QueueOrder(Protocol):
    """Picks one of several."""

    @property
    def looks_at_matches(self) -> bool:
        """It has to be shown more than the oldest."""
        ...

    @property
    def shares_by_tenant(self) -> bool:
        """Not every tenant is entitled to go next."""
        ...

    def entitled(self, tenants: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of `tenants`, all that wait and can go, one of whom goes next."""
        ...

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
        """Return the one that goes next; it is taken to go.

        Args:
            waiting: of one group, can all go now, of entitled tenants, in the order of arrival; at
                least one.
            match_of: looks a prompt up; asked at most once for each, and never for a lone one.

        Cost: O(waiting), each a look-up.
        """
        ...

    def charge(self, tenant: str, tokens: int) -> None:
        """Hear that tokens were computed for a tenant while others waited."""
        ...


class FirstComeFirstServed:
    """See the module."""

    __slots__ = ()

    @property
    def looks_at_matches(self) -> bool:
        """It does not."""
        return False

    @property
    def shares_by_tenant(self) -> bool:
        """It does not."""
        return False

    def entitled(self, tenants: AbstractSet[str]) -> AbstractSet[str]:
        """Return all."""
        return tenants

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:  # noqa: ARG002
        """Return the oldest."""
        return waiting[0]

    def charge(self, tenant: str, tokens: int) -> None:
        """Nobody has a share."""


class LongestPrefixMatch:
    """`lpm`, and `k_lpm` if `k` is given.

    Args:
        k: every so many turns of a group its oldest goes, >= 1; None: never for that reason. 1 is
            `fcfs`.
    """

    __slots__ = ("_k", "_turns")

    def __init__(self, k: int | None = None) -> None:
        assert k is None or k >= 1
        self._k = k
        # By the hash of a group, which may be as long as a client likes.
        self._turns: dict[int, int] = {}

    @property
    def looks_at_matches(self) -> bool:
        """It does."""
        return True

    @property
    def shares_by_tenant(self) -> bool:
        """It does not."""
        return False

    def entitled(self, tenants: AbstractSet[str]) -> AbstractSet[str]:
        """Return all."""
        return tenants

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
        """Return the longest match, or the oldest in its turn."""
        if self._k is not None and self._is_oldests_turn(waiting, self._k):
            return waiting[0]
        return longest_match(waiting, match_of)

    def charge(self, tenant: str, tokens: int) -> None:
        """Nobody has a share."""

    def check_integrity(self) -> None:
        """Assert the bounds."""
        assert len(self._turns) <= MAX_GROUPS
        assert all(self._k is not None and 0 <= turn < self._k for turn in self._turns.values())

    def _is_oldests_turn(self, waiting: Sequence[W], k: int) -> bool:
        key = hash(waiting[0].group)
        turn = self._turns.pop(key, 0)
        if len(waiting) > 1:  # else nobody is left, and the count begins anew
            self._turns[key] = (turn + 1) % k
            if len(self._turns) > MAX_GROUPS:
                del self._turns[next(iter(self._turns))]
        return turn == 0


class DeficitLongestPrefixMatch:
    """`dlpm`: a tenant whose deficit is used up waits until all who wait have used up theirs.

    A tenant is charged what is computed for it: the uncached tokens of its prompts and what is
    generated. When nobody who waits has anything left, all who wait get a quantum; nobody keeps
    more than one. What a tenant owes is bounded by `MAX_DEBT_QUANTA` and one charge, and so is what
    each of the others gets before it.

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

    @property
    def shares_by_tenant(self) -> bool:
        """It does."""
        return True

    def entitled(self, tenants: AbstractSet[str]) -> AbstractSet[str]:
        """Return those that have something left, after so many quanta that there are any."""
        most = max(self.deficit(tenant) for tenant in tenants)
        if most <= 0:
            quantum = self._quantum_tokens
            added = (-most // quantum + 1) * quantum
            for tenant in tenants:
                self._deficits[tenant] = min(self.deficit(tenant) + added, quantum)
            self._forget()
        return {tenant for tenant in tenants if self.deficit(tenant) > 0}

    def pick(self, waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
        """Return the longest match."""
        return longest_match(waiting, match_of)

    def deficit(self, tenant: str) -> int:
        """Return the tokens that a tenant may use before the others have had their turn."""
        return self._deficits.get(tenant, self._quantum_tokens)

    def charge(self, tenant: str, tokens: int) -> None:
        """Take tokens off a tenant's deficit."""
        deficit = self.deficit(tenant)
        least = -MAX_DEBT_QUANTA * self._quantum_tokens
        self._deficits[tenant] = min(deficit, max(deficit, least) - tokens)
        self._forget()

    def check_integrity(self) -> None:
        """Assert the bounds."""
        assert len(self._deficits) <= MAX_TENANTS
        assert all(left <= self._quantum_tokens for left in self._deficits.values())

    def _forget(self) -> None:
        while len(self._deficits) > MAX_TENANTS:
            # Whoever has most left loses least by being forgotten.
            del self._deficits[max(self._deficits, key=self._deficits.__getitem__)]


def longest_match(waiting: Sequence[W], match_of: Callable[[W], Match]) -> W:
    """Return the first of those that match most."""
    best = waiting[0]
    if len(waiting) == 1:
        return best
    most = match_of(best).matched_tokens
    for one in waiting[1:]:
        matched = match_of(one).matched_tokens
        if matched > most:
            best, most = one, matched
    return best
