"""Requests that wait for a replica: how many and how long, and who is next.

A line holds requests that the same replicas can take and that have the same priority, in the order
of their coming, so that one that cannot go yet holds up nobody in another line. Of those that can
go the least priority goes first; among these the order decides (`queue_orders`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from typing import Final, Generic, TypeVar

from headstart.routing.queue_orders import (
    DeficitLongestPrefixMatch,
    FirstComeFirstServed,
    LongestPrefixMatch,
    Match,
    QueueOrder,
    QueueOrderName,
)
from headstart.routing.replica import Replica

T = TypeVar("T")

MAX_LOOKED_AT: Final = 64
"""Of those that can go, the oldest so many are compared: each takes a look-up in the index."""


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """When requests wait, how many and how long.

    Attributes:
        max_in_flight: >= 1; requests that one replica is sent at the same time. None sends every
            request at once: the engine has a queue of its own.
        max_waiting: >= 0; requests that may wait.
        max_waiting_bytes: >= 0; their bodies together.
        max_wait_s: > 0; how long one may wait.
        order: who goes next.
        age_s: > 0; whoever has waited for longer goes first, whatever the order and priorities.
        k: of `k_lpm`, >= 1.
        quantum_tokens: of `dlpm`, >= 1.
        ttft_objective_s: > 0; a request whose first token cannot be expected within it is refused
            at once. None refuses nobody.
    """

    max_in_flight: int | None = None
    max_waiting: int = 1024
    max_waiting_bytes: int = 256 * 1024 * 1024
    max_wait_s: float = 30.0
    order: QueueOrderName = "fcfs"
    age_s: float = 10.0
    k: int = 4
    quantum_tokens: int = 32_768
    ttft_objective_s: float | None = None

    def share(self, num_workers: int) -> "QueueConfig":
        """Return what is one worker's of several: its part of each replica, at least one request.

        They do not know of each other's requests; more than `max_in_flight` cannot come together
        unless there are more workers than that.
        """
        if self.max_in_flight is None:
            return self
        return replace(self, max_in_flight=max(1, self.max_in_flight // num_workers))


@dataclass(frozen=True, slots=True)
class Line:
    """What requests have in common that can be sent to the same replicas.

    Attributes:
        model: name asked for.
        failed: the replica that has failed them, on which they are not tried again if there is
            another.
        priority: theirs; the least goes first.
    """

    model: str
    failed: Replica | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Place(Generic[T]):
    """One waiting request's place in the queue.

    Attributes:
        who: waits.
        line: where.
        number: order of arrival; those with a smaller one go first.
        num_bytes: of its body.
        since: monotonic seconds when it came.
        group: whose cached prefixes it may use.
        tenant: for whom it counts.
    """

    who: T
    line: Line
    number: int
    num_bytes: int
    since: float
    group: str = ""
    tenant: str = ""


MatchOf = Callable[[Place[T]], Match]


class WaitQueue(Generic[T]):
    """Everybody that waits.

    Args:
        config: bounds; `max_in_flight` is not used here.
    """

    __slots__ = ("_config", "_count", "_lines", "_num_bytes", "_order", "_places")

    def __init__(self, config: QueueConfig) -> None:
        self._config = config
        self._count = 0
        # All places by the time of their coming, and the same by line. Both are ordered dicts,
        # because taking the first and leaving from the middle are both common.
        self._places: OrderedDict[Place[T], None] = OrderedDict()
        self._lines: dict[Line, OrderedDict[Place[T], None]] = {}
        self._num_bytes = 0
        self._order = build_order(config)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._places)

    @property
    def num_waiting_bytes(self) -> int:
        """Their bodies together."""
        return self._num_bytes

    def lines(self) -> list[Line]:
        """Return the lines in which someone waits."""
        return list(self._lines)

    @property
    def order(self) -> QueueOrder:
        """Who decides."""
        return self._order

    def join(
        self, who: T, line: Line, num_bytes: int, now: float, group: str = "", tenant: str = ""
    ) -> Place[T] | None:
        """Take a place at the end of `line`; None if the queue is full.

        A request that a replica has failed goes before all that have not been sent yet: it came
        before them.
        """
        config = self._config
        if (
            len(self._places) >= config.max_waiting
            or self._num_bytes + num_bytes > config.max_waiting_bytes
        ):
            return None
        self._count += 1
        number = self._count if line.failed is None else 0
        place = Place(who, line, number, num_bytes, now, group, tenant)
        self._places[place] = None
        self._lines.setdefault(line, OrderedDict())[place] = None
        self._num_bytes += num_bytes
        return place

    def leave(self, place: Place[T]) -> None:
        """Give a place up. Cost: O(1)."""
        del self._places[place]
        line = self._lines[place.line]
        del line[place]
        if not line:
            del self._lines[place.line]
        self._num_bytes -= place.num_bytes

    def pop_next(
        self, can_go: Callable[[Line], bool], match_of: MatchOf[T], now: float
    ) -> Place[T] | None:
        """Take out the next of those whose line can go; None if there is none.

        Args:
            can_go: whether a line's requests can be sent now.
            match_of: looks a request's prompt up; not asked where the order is that of arrival.
            now: monotonic seconds.

        Cost: O(lines), which are at most the models and priorities waited for; with an order by
        prefix `MAX_LOOKED_AT` look-ups besides.
        """
        lines = [places for line, places in self._lines.items() if can_go(line)]
        if not lines:
            return None
        best = self._oldest(lines)
        if best.number and now - best.since <= self._config.age_s:
            best = self._ordered(lines, match_of)
        elif self._order.looks_at_matches:
            self._order.pick([best], match_of)  # counts for its tenant all the same
        self.leave(best)
        return best

    def _oldest(self, lines: Sequence[OrderedDict[Place[T], None]]) -> Place[T]:
        return min((next(iter(places)) for places in lines), key=_number)

    def _ordered(
        self, lines: Sequence[OrderedDict[Place[T], None]], match_of: MatchOf[T]
    ) -> Place[T]:
        """Return the order's choice among those of the least priority."""
        least = min(next(iter(places)).line.priority for places in lines)
        lines = [places for places in lines if next(iter(places)).line.priority == least]
        if not self._order.looks_at_matches:
            return self._oldest(lines)
        waiting = list(islice(merge(*lines, key=_number), MAX_LOOKED_AT))
        return self._order.pick(waiting, match_of)

    def pop_late(self, now: float) -> Place[T] | None:
        """Take out one that has waited for longer than `max_wait_s`; None if there is none."""
        first = next(iter(self._places), None)
        if first is None or now - first.since <= self._config.max_wait_s:
            return None
        self.leave(first)
        return first

    def pop_line(self, line: Line) -> Iterator[Place[T]]:
        """Take out everyone in `line`, in order."""
        while line in self._lines:
            place = next(iter(self._lines[line]))
            self.leave(place)
            yield place

    def longest_wait_s(self, now: float) -> float:
        """Return how long the one has waited that has done so longest; 0 if nobody waits."""
        first = next(iter(self._places), None)
        return 0.0 if first is None else now - first.since

    def check_integrity(self) -> None:
        """Assert that both orders hold the same, that no line is empty, and the bounds."""
        in_lines = [place for places in self._lines.values() for place in places]
        assert sorted(map(id, in_lines)) == sorted(map(id, self._places))
        assert all(self._lines.values())
        assert all(place.line == line for line, places in self._lines.items() for place in places)
        assert self._num_bytes == sum(place.num_bytes for place in self._places)
        assert len(self._places) <= self._config.max_waiting
        assert self._num_bytes <= self._config.max_waiting_bytes


def build_order(config: QueueConfig) -> QueueOrder:
    """Return the order that a configuration names."""
    match config.order:
        case "fcfs":
            return FirstComeFirstServed()
        case "lpm":
            return LongestPrefixMatch()
        case "k_lpm":
            return LongestPrefixMatch(config.k)
        case "dlpm":
            return DeficitLongestPrefixMatch(config.quantum_tokens)


def _number(place: Place[T]) -> int:
    return place.number
