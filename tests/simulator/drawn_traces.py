"""Traces that Hypothesis draws, in the form in which readers give them back."""

from hypothesis import strategies as st

from headstart.simulator.formats.numbering import Numbering
from headstart.simulator.trace import PrefixTree, Trace, TraceRequest

IDS = st.lists(st.integers(0, 3), max_size=6)
"""Few different ones, so that prompts share beginnings."""


@st.composite
def timed_traces(draw, min_size=1):
    """A timed trace: it starts at 0, times are whole milliseconds, numbers in order of use."""
    block_tokens = draw(st.sampled_from((1, 3, 16, 512)))
    times = sorted(draw(st.lists(st.integers(0, 10_000), min_size=min_size, max_size=8)))
    tree, sessions = PrefixTree(), Numbering()
    requests = []
    for time in times:
        blocks = tuple(tree.walk(draw(IDS)))
        spare = draw(st.integers(0, 2 * block_tokens))
        session = draw(st.integers(-1, 3))
        requests.append(
            TraceRequest(
                arrival_s=(time - times[0]) / 1000,
                input_tokens=max(len(blocks) * block_tokens - block_tokens + 1 + spare, 1),
                output_tokens=draw(st.integers(1, 9)),
                blocks=blocks,
                session=sessions.number(session) if session >= 0 else -1,
                tenant=draw(st.sampled_from(("", "acme"))),
            )
        )
    return Trace("drawn", block_tokens, tuple(requests), is_timed=True)


@st.composite
def untimed_traces(draw):
    """Sessions of requests at times since their session's start, and some without a session."""
    tree = PrefixTree()
    requests = []
    for session in range(draw(st.integers(1, 5))):
        times = sorted(draw(st.lists(st.floats(0, 2000), min_size=1, max_size=5)))
        is_session = len(times) > 1 or draw(st.booleans())
        for time in times:
            blocks = tuple(tree.walk(draw(IDS)))
            number = session if is_session else -1
            requests.append(TraceRequest(time, 16 * len(blocks) + 1, 1, blocks, number))
    return Trace("drawn", 16, tuple(requests), is_timed=False)
