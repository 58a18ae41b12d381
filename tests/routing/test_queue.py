"""`WaitQueue` against a naive twin, and what it promises about order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headstart.routing.queue import Line, QueueConfig, WaitQueue
from headstart.routing.replica import Replica

A, B = Replica("a"), Replica("b")
LINES = [Line("x"), Line("y"), Line(""), Line("x", A), Line("x", B), Line("y", A)]
CONFIG = QueueConfig(max_in_flight=1, max_waiting=6, max_waiting_bytes=100, max_wait_s=10)


def no_match(place):
    raise AssertionError("an order by arrival looks nothing up")


class QueueMachine(RuleBasedStateMachine):
    """The twin is one list in the order of coming."""

    def __init__(self):
        super().__init__()
        self.queue = WaitQueue(CONFIG)
        self.places = []
        self.now = 0.0
        self.count = 0

    @rule(line=st.sampled_from(LINES), num_bytes=st.integers(0, 40))
    def join(self, line, num_bytes):
        self.count += 1
        used = sum(place.num_bytes for place in self.places)
        is_full = len(self.places) == CONFIG.max_waiting
        place = self.queue.join(self.count, line, num_bytes, self.now)
        assert (place is None) == (is_full or used + num_bytes > CONFIG.max_waiting_bytes)
        if place is not None:
            assert (place.who, place.line, place.since) == (self.count, line, self.now)
            self.places.append(place)

    @rule(data=st.data())
    def leave(self, data):
        if self.places:
            place = data.draw(st.sampled_from(self.places))
            self.queue.leave(place)
            self.places.remove(place)

    @rule(open_lines=st.sets(st.sampled_from(LINES)))
    def serve(self, open_lines):
        able = [place for place in self.places if place.line in open_lines]
        place = self.queue.pop_next(open_lines.__contains__, no_match, self.now)
        if not able:
            assert place is None
            return
        # Those that a replica has failed go first; among their lines any may.
        failed = [each for each in able if each.line.failed is not None]
        assert place in (failed or able[:1])
        assert place is next(each for each in self.places if each.line == place.line)
        self.places.remove(place)

    @rule(seconds=st.sampled_from([0.5, 5, 10, 11]))
    def let_time_pass(self, seconds):
        self.now += seconds
        while (place := self.queue.pop_late(self.now)) is not None:
            assert place is self.places.pop(0)
            assert self.now - place.since > CONFIG.max_wait_s
        assert all(self.now - place.since <= CONFIG.max_wait_s for place in self.places)

    @rule(line=st.sampled_from(LINES))
    def pop_line(self, line):
        expected = [place for place in self.places if place.line == line]
        assert list(self.queue.pop_line(line)) == expected
        self.places = [place for place in self.places if place.line != line]

    @invariant()
    def check(self):
        self.queue.check_integrity()
        assert self.queue.num_waiting == len(self.places)
        assert self.queue.num_waiting_bytes == sum(place.num_bytes for place in self.places)
        assert set(self.queue.lines()) == {place.line for place in self.places}
        oldest = self.places[0].since if self.places else self.now
        assert self.queue.longest_wait_s(self.now) == self.now - oldest


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def queue_of(*lines):
    queue = WaitQueue(QueueConfig())
    for number, line in enumerate(lines):
        assert queue.join(number, line, 1, 0.0)
    return queue


def served(queue, can_go):
    order = []
    while (place := queue.pop_next(can_go, no_match, 0.0)) is not None:
        order.append(place.who)
    return order


def test_first_come_is_first_served_over_all_lines():
    """A line is no advantage."""
    x, y = Line("x"), Line("y")
    assert served(queue_of(x, y, y, x, y), lambda line: True) == [0, 1, 2, 3, 4]


def test_who_cannot_go_holds_up_only_its_own_line():
    """The others keep their order."""
    x, y, z = Line("x"), Line("y"), Line("z")
    queue = queue_of(x, y, z, x, z, y)
    assert served(queue, lambda line: line != x) == [1, 2, 4, 5]
    assert served(queue, lambda line: True) == [0, 3]


def test_who_was_failed_goes_before_who_has_not_been_sent():
    """It came before them."""
    assert served(queue_of(Line("x"), Line("x", A)), lambda line: True) == [1, 0]


def test_only_the_first_of_a_line_is_asked_about():
    """A thousand who wait for one model cost no more than one."""
    queue = queue_of(*[Line("x")] * 1000, Line("y"))
    asked = []
    place = queue.pop_next(lambda line: asked.append(line) or line == Line("y"), no_match, 0.0)
    assert place.who == 1000
    assert asked == [Line("x"), Line("y")]
