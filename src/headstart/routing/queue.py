"""Requests that wait for a replica: how many and how long, and who is next.

Theory of operation: a line holds requests that the same replicas can take and that have the same
priority, so that one that cannot go yet holds up nobody in another line. For an order by prefix a
line has a row for each group that shares prefixes, and for an order by shares one for each tenant.
Of those that can go next,

1. who was failed by a replica goes first: it came before all others;
2. where tenants have shares, those without any left stand back;
3. the oldest goes, if it has waited for `age_s`;
4. the least priority goes first;
5. the group goes whose turn it is, and the order (`queue_orders`) says who of it.

A turn is worth one request of a group, and turns come in the order in which requests came. Whoever
is served before its time takes the turn of its row's first, and those before it take the next ones:
who of a group goes is its own affair, and when another group goes does not depend on it.
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
"""Of those whose turn it is, the oldest so many are compared: each takes a look-up in the index."""


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
        age_s: > 0; whoever has waited for longer goes first, whatever the order and priorities; of
            `dlpm`, among the tenants that have something left.
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


@dataclass(slots=True, eq=False)
class Place(Generic[T]):
    """One waiting request's place in the queue.

    Mutates: `turn`, which only the queue changes.

    Attributes:
        who: waits.
        line: where.
        number: order of arrival; those with a smaller one go first.
        num_bytes: of its body.
        since: monotonic seconds when it came.
        group: whose cached prefixes it may use.
        tenant: for whom it counts.
        turn: `number`, or that of one of the same row that came later and went earlier.
    """

    who: T
    line: Line
    number: int
    num_bytes: int
    since: float
    group: str = ""
    tenant: str = ""
    turn: int = 0


MatchOf = Callable[[Place[T]], Match]

_Row = OrderedDict[Place[T], None]


class WaitQueue(Generic[T]):
    """Everybody that waits.

    Args:
        config: bounds and order; `max_in_flight` is not used here.
    """

    __slots__ = (
        "_config",
        "_count",
        "_lines",
        "_looks_at_matches",
        "_num_bytes",
        "_order",
        "_places",
        "_shares_by_tenant",
    )

    def __init__(self, config: QueueConfig) -> None:
        self._config = config
        self._count = 0
        # All places by the time of their coming, and the same by line and row. They are ordered
        # dicts, because taking the first and leaving from the middle are both common.
        self._places: _Row[T] = OrderedDict()
        self._lines: dict[Line, dict[tuple[str, str], _Row[T]]] = {}
        self._num_bytes = 0
        self._order = build_order(config)
        self._looks_at_matches = self._order.looks_at_matches
        self._shares_by_tenant = self._order.shares_by_tenant

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._places)

    @property
    def num_waiting_bytes(self) -> int:
        """Their bodies together."""
        return self._num_bytes

    def num_ahead(self, model: str, priority: int) -> int:
        """Return how many wait for `model` with `priority` or less. Cost: O(lines and rows)."""
        return sum(
            sum(map(len, rows.values()))
            for line, rows in self._lines.items()
            if line.model == model and line.priority <= priority
        )

    def lines(self) -> list[Line]:
        """Return the lines in which someone waits."""
        return list(self._lines)

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
        place = Place(who, line, number, num_bytes, now, group, tenant, number)
        self._places[place] = None
        row = self._lines.setdefault(line, {}).setdefault(self._key(place), OrderedDict())
        row[place] = None
        self._num_bytes += num_bytes
        return place

    def leave(self, place: Place[T]) -> None:
        """Give a place up. Cost: O(1)."""
        del self._places[place]
        rows, key = self._lines[place.line], self._key(place)
        row = rows[key]
        del row[place]
        if not row:
            del rows[key]
            if not rows:
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

        Cost: O(lines and rows): models, priorities, and for the orders that look at them groups or
        tenants waited for; with an order by prefix `MAX_LOOKED_AT` look-ups besides.
        """
        heads = [
            next(iter(row))
            for line, rows in self._lines.items()
            if can_go(line)
            for row in rows.values()
        ]
        if not heads:
            return None
        best = min(heads, key=_number)
        if best.number:  # no replica has failed it
            if self._shares_by_tenant:
                tenants = self._order.entitled({head.tenant for head in heads})
                heads = [head for head in heads if head.tenant in tenants]
                best = min(heads, key=_number)
            if now - best.since <= self._config.age_s:
                best = self._ordered(heads, match_of)
        self._pass_turns(best)
        self.leave(best)
        return best

    def charge(self, tenant: str, tokens: int) -> None:
        """Hear that tokens were computed for a tenant; what nobody waits for costs nothing."""
        if self._shares_by_tenant and self._places:
            self._order.charge(tenant, tokens)

    def pop_late(self, now: float) -> Place[T] | None:
        """Take out one that has waited for longer than `max_wait_s`; None if there is none."""
        first = next(iter(self._places), None)
        if first is None or now - first.since <= self._config.max_wait_s:
            return None
        self.leave(first)
        return first

    def pop_line(self, line: Line) -> Iterator[Place[T]]:
        """Take out everyone in `line`, row by row."""
        while line in self._lines:
            place = next(iter(next(iter(self._lines[line].values()))))
            self.leave(place)
            yield place

    def longest_wait_s(self, now: float) -> float:
        """Return how long the one has waited that has done so longest; 0 if nobody waits."""
        first = next(iter(self._places), None)
        return 0.0 if first is None else now - first.since

    def check_integrity(self) -> None:
        """Assert that both orders hold the same, that no line is empty, turns and the bounds."""
        in_rows = []
        for line, rows in self._lines.items():
            assert rows
            for key, row in rows.items():
                places = list(row)
                assert places
                assert all(place.line == line for place in places)
                assert all(self._key(place) == key for place in places)
                if line.failed is None:
                    turns = [place.turn for place in places]
                    assert turns == sorted(set(turns))
                    assert all(place.turn >= place.number for place in places)
                in_rows += places
        assert sorted(map(id, in_rows)) == sorted(map(id, self._places))
        assert self._num_bytes == sum(place.num_bytes for place in self._places)
        assert len(self._places) <= self._config.max_waiting
        assert self._num_bytes <= self._config.max_waiting_bytes

    def _key(self, place: Place[T]) -> tuple[str, str]:
        """Return which row of its line a place is in."""
        return (
            place.group if self._looks_at_matches else "",
            place.tenant if self._shares_by_tenant else "",
        )

    def _ordered(self, heads: Sequence[Place[T]], match_of: MatchOf[T]) -> Place[T]:
        """Return the order's choice of the group whose turn it is, in the least priority."""
        least = min(head.line.priority for head in heads)
        first = min((head for head in heads if head.line.priority == least), key=_turn)
        if not self._looks_at_matches:
            return first
        rows = [
            self._lines[head.line][self._key(head)]
            for head in heads
            if head.group == first.group and head.line == first.line
        ]
        waiting = list(islice(merge(*rows, key=_number), MAX_LOOKED_AT))
        return self._order.pick(waiting, match_of)

    def _pass_turns(self, place: Place[T]) -> None:
        """Give `place` the turn of its row's first. Cost: O(those before it)."""
        before: Place[T] | None = None
        for each in self._lines[place.line][self._key(place)]:
            if before is not None:
                before.turn = each.turn
            if each is place:
                return
            before = each


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


def _turn(place: Place[T]) -> int:
    return place.turn
