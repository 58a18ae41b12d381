"""Requests that wait for a replica, in the order in which they came.

A line holds requests that the same replicas can take, so that only its first has to be looked at,
and one that cannot go yet holds up nobody in another line. Which line is served next when
replicas can take requests of several is decided by who came first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from headstart.routing.replica import Replica

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """When requests wait, how many and how long.

    Attributes:
        max_in_flight: >= 1; requests that one replica is sent at the same time. None sends every
            request at once: the engine has a queue of its own.
        max_waiting: >= 0; requests that may wait.
        max_waiting_bytes: >= 0; their bodies together.
        max_wait_s: > 0; how long one may wait.
    """

    max_in_flight: int | None = None
    max_waiting: int = 1024
    max_waiting_bytes: int = 256 * 1024 * 1024
    max_wait_s: float = 30.0

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
    """

    model: str
    failed: Replica | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Place(Generic[T]):
    """One waiting request's place in the queue.

    Attributes:
        who: waits.
        line: where.
        number: order of arrival; those with a smaller one go first.
        num_bytes: of its body.
        since: monotonic seconds when it came.
    """

    who: T
    line: Line
    number: int
    num_bytes: int
    since: float


class WaitQueue(Generic[T]):
    """First come, first served, among those that can be served.

    Args:
        config: bounds; `max_in_flight` is not used here.
    """

    __slots__ = ("_config", "_count", "_lines", "_num_bytes", "_places")

    def __init__(self, config: QueueConfig) -> None:
        self._config = config
        self._count = 0
        # All places by the time of their coming, and the same by line. Both are ordered dicts,
        # because taking the first and leaving from the middle are both common.
        self._places: OrderedDict[Place[T], None] = OrderedDict()
        self._lines: dict[Line, OrderedDict[Place[T], None]] = {}
        self._num_bytes = 0

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

    def join(self, who: T, line: Line, num_bytes: int, now: float) -> Place[T] | None:
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
        place = Place(who, line, number, num_bytes, now)
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

    def pop_next(self, can_go: Callable[[Line], bool]) -> Place[T] | None:
        """Take out the first of those whose line can go; None if there is none.

        Cost: O(lines), which are at most the models waited for.
        """
        best: Place[T] | None = None
        for line, places in self._lines.items():
            first = next(iter(places))
            if (best is None or first.number < best.number) and can_go(line):
                best = first
        if best is not None:
            self.leave(best)
        return best

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
