"""`PrefixView` under anything that routers, engines and feeds may tell it, in any order."""

from approximate_prompts import prompt_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headstart.prefix.config import PrefixConfig
from headstart.prefix.stream_step import StreamFault, StreamStanding
from headstart.prefix.trust import TrustConfig, TrustMode
from headstart.prefix.view import PrefixView
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.types import TokenId

SLOTS = st.integers(0, 2)
PATHS = st.lists(st.integers(0, 2), max_size=6)
TOKENS = st.none() | st.integers(0, 3000)
MAX_OPEN = 5


def tokens_of(path):
    token_ids = [TokenId(step) for step in path for _ in range(20)]
    return TokenPrompt(len(token_ids), {16: block_keys(token_ids, 16, block_root("", ""))})


class ViewMachine(RuleBasedStateMachine):
    """Each dispatch ends at most once; figures are whatever engines come up with."""

    def __init__(self):
        super().__init__()
        config = PrefixConfig(speculative_s=2.0, max_entries=20, max_open=MAX_OPEN, ttl_s=90.0)
        self.view = PrefixView(config, TrustConfig(window=8, min_answers=2))
        self.now = 0.0
        self.open = []
        for slot in range(3):
            self.view.add_replica(slot, f"r{slot}")

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 70.0]))
    def wait(self, seconds):
        self.now += seconds
        self.view.tick(self.now)

    @rule(slot=SLOTS, path=PATHS, tail_bytes=st.sampled_from([0, 50]), has_tokens=st.booleans())
    def dispatch(self, slot, path, tail_bytes, has_tokens):
        prompt = prompt_of(*path, tail_bytes=tail_bytes)
        tokens = tokens_of(path) if has_tokens else None
        (matched,) = self.view.match(prompt, tokens, [slot], self.now)
        if self.view.mode(slot) is TrustMode.LOAD_ONLY:
            assert matched == 0
        self.view.dispatched(slot, prompt, tokens, self.now)
        self.open.append((slot, prompt, tokens, matched))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cached=TOKENS, uncached=TOKENS, output=TOKENS)
    def answer(self, data, cached, uncached, output):
        slot, prompt, tokens, matched = data.draw(st.sampled_from(self.open))
        self.forget(prompt)
        size = None if uncached is None else uncached + (cached or 0)
        self.view.answered(slot, prompt, tokens, matched, size, cached, output, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data):
        slot, prompt, _, _ = data.draw(st.sampled_from(self.open))
        self.forget(prompt)
        self.view.failed(slot, prompt, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data):
        slot, prompt, _, _ = data.draw(st.sampled_from(self.open))
        self.view.first_token(slot, prompt, self.now)

    @rule(slot=SLOTS)
    def replace(self, slot):
        self.view.remove_replica(slot)
        self.view.add_replica(slot, f"r{slot} again")

    @rule(
        slot=SLOTS, capacity=st.none() | st.integers(1, 2000), size=st.sampled_from([None, 1, 16])
    )
    def resize(self, slot, capacity, size):
        self.view.set_capacity(slot, capacity, size)

    @rule(slot=SLOTS, standing=st.sampled_from(StreamStanding), is_agreed=st.booleans())
    def stream(self, slot, standing, is_agreed):
        self.view.tokens_agree(slot, is_agreed, self.now)
        fault = StreamFault.GAP if standing is StreamStanding.LOST else None
        self.view.stream_standing(slot, 0, standing, fault, self.now)

    @rule(slot=SLOTS)
    def stream_gone(self, slot):
        self.view.stream_reset(slot, 0, self.now)
        self.view.stream_removed(slot, 0)

    @invariant()
    def is_whole(self):
        self.view.check_integrity()
        assert self.view.num_open <= MAX_OPEN
        prompt = prompt_of(0, 1, 2)
        for matched in self.view.match(prompt, tokens_of((0, 1, 2)), (0, 1, 2), self.now):
            assert matched >= 0
        assert self.view.estimate_tokens(prompt, 0) >= 0

    def forget(self, prompt):
        self.open = [waiting for waiting in self.open if waiting[1] is not prompt]


TestViewMachine = ViewMachine.TestCase
TestViewMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
