"""What peers tell, in the real index: it teaches, and it judges nobody."""

from gossip_sides import Requests, prompt_of
from headstart.prefix.view import PrefixView
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.routing.gossip.index import RemoteIndex
from headstart.routing.gossip.outbox import Outbox
from headstart.routing.gossip.roster import Roster
from headstart.routing.replica import Replica

ID = b"replica0"
NUM_TOKENS = 768
PROMPT = prompt_of("hello", 3)


class Pair:
    """A process that sends, and the index of another that hears of it."""

    def __init__(self):
        self.replica = Replica("r0")
        roster = Roster()
        roster.add(self.replica, ID)
        self.outbox = Outbox("a/0", 1, roster, lambda: None)
        self.requests = Requests(self.outbox)
        self.view = PrefixView()
        self.view.add_replica(5, "r0")
        self.index = RemoteIndex(self.view, lambda its_id: 5 if its_id == ID else None)

    def tell(self, now=0.0):
        batch = self.outbox.take_changes()
        for prompt in batch.sent:
            self.index.sent(batch, prompt, now)
        for number in batch.computed:
            self.index.computed(batch, number, now)
        for outcome in batch.outcomes:
            self.index.came_back(batch, outcome, now)
        self.view.check_integrity()

    def matched(self, now=0.0):
        return self.view.match(PROMPT, None, [5], now)[0]


def test_a_prompt_that_was_sent_elsewhere_is_expected_and_then_known():
    """For a short time until its engine has begun to answer, and from then on."""
    pair = Pair()
    assert pair.matched() == 0
    dispatch = pair.requests.send(pair.replica, PROMPT)
    pair.tell()
    assert pair.matched() > 0
    assert pair.matched(now=100.0) == 0
    pair.requests.first_token(dispatch)
    pair.tell(now=1.0)
    assert pair.matched(now=100.0) > 0
    pair.requests.answer(dispatch, (NUM_TOKENS, 0, 5))
    pair.tell(now=2.0)
    assert NUM_TOKENS - 64 <= pair.matched(now=100.0) < NUM_TOKENS
    assert pair.view.num_open == 0


def test_a_prompt_that_failed_elsewhere_is_expected_no_longer():
    """The replica may not have it."""
    pair = Pair()
    dispatch = pair.requests.send(pair.replica, PROMPT)
    pair.tell()
    pair.requests.end(dispatch)
    pair.tell()
    assert pair.matched() == 0
    assert pair.view.num_open == 0


def test_what_the_engine_says_corrects_the_index():
    """That it had nothing of what was thought to be there is news for everybody."""
    pair = Pair()
    for usage in ((NUM_TOKENS, 0, 5), (NUM_TOKENS, 0, 5)):
        dispatch = pair.requests.send(pair.replica, PROMPT)
        pair.tell()
        pair.requests.answer(dispatch, usage)
        pair.tell()
    calibration = pair.view.statistics(5).calibration
    assert calibration.num_evictions + calibration.num_resets == 1


def test_predictions_of_others_are_not_counted_as_ours():
    """Each process counts its own, and the sums over them are right."""
    pair = Pair()
    before = pair.view.statistics(5).calibration
    dispatch = pair.requests.send(pair.replica, PROMPT, matched=0)
    pair.tell()
    pair.requests.answer(dispatch, (NUM_TOKENS, 704, 5))
    pair.tell()
    after = pair.view.statistics(5).calibration
    assert (after.num_answers, after.num_off) == (before.num_answers, before.num_off) == (0, 0)


def test_a_tokenised_prompt_is_told_to_the_precise_index_by_what_is_new_of_it():
    """A tail of its chain, which a match of our own would find nowhere, degrades nobody."""
    pair = Pair()
    keys = block_keys(range(NUM_TOKENS), 16, block_root("", ""))
    tokens = TokenPrompt(NUM_TOKENS, {16: keys})
    dispatch = pair.requests.send(pair.replica, PROMPT, matched=512, tokens=tokens)
    before = pair.view.mode(5)
    pair.tell()
    pair.requests.answer(dispatch, (NUM_TOKENS, 512, 5))
    pair.tell()
    assert pair.view.mode(5) is before
    assert pair.view.num_open == 0
