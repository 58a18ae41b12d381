"""`wire.gossip`: what is said comes out as it went in, and nothing else comes in."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.wire.gossip import (
    MAX_BATCH_KEYS,
    MAX_BATCH_LOADS,
    MAX_BATCH_PROMPTS,
    MAX_MESSAGE_BYTES,
    MAX_PROMPT_KEYS,
    GossipBatch,
    GossipDecodeError,
    Kind,
    LoadReport,
    Outcome,
    SentPrompt,
    TokenKeys,
    decode_gossip,
    encode_gossip,
    pack_ends,
    pack_keys,
    unpack_blocks,
)

COUNTS = st.integers(0, 1 << 53)
REPLICA_IDS = st.binary(min_size=8, max_size=8)
MAYBE = st.none() | COUNTS
TOKEN_KEYS = st.builds(TokenKeys, st.integers(1, 1 << 20), st.just(b"t" * 32))


@st.composite
def prompts(draw):
    sizes = draw(st.lists(st.integers(1, 5000), max_size=5))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    keys = [draw(st.binary(min_size=16, max_size=16)) for _ in sizes]
    num_bytes = sum(sizes) + draw(st.integers(0, 100))
    return SentPrompt(
        draw(COUNTS),
        draw(REPLICA_IDS),
        pack_keys(keys),
        pack_ends(ends),
        num_bytes,
        draw(MAYBE),
        draw(MAYBE),
        draw(
            st.lists(st.builds(TokenKeys, st.integers(1, 1 << 20), st.just(b"t" * 32)), max_size=4)
        ),
    )


BATCHES = st.builds(
    GossipBatch,
    sender=st.from_regex(r"[A-Za-z0-9._:/-]{1,96}", fullmatch=True),
    epoch=st.integers(0, (1 << 63) - 1),
    number=COUNTS,
    kind=st.sampled_from(Kind),
    loads=st.lists(st.builds(LoadReport, REPLICA_IDS, COUNTS, COUNTS, COUNTS, COUNTS), max_size=4),
    sent=st.lists(prompts(), max_size=4),
    outcomes=st.lists(st.builds(Outcome, COUNTS, st.booleans(), MAYBE, MAYBE, MAYBE), max_size=4),
    computed=st.lists(COUNTS, max_size=4),
)


def batch(**changes) -> GossipBatch:
    empty = {"loads": [], "sent": [], "outcomes": [], "computed": []}
    return GossipBatch("a/0", 1, 0, Kind.CHANGES, **{**empty, **changes})


def prompt(**changes) -> SentPrompt:
    fields = {
        "number": 0,
        "replica": b"r" * 8,
        "keys": b"k" * 32,
        "ends": pack_ends([10, 20]),
        "num_bytes": 25,
        "matched_tokens": None,
        "token_keys": [],
    }
    return SentPrompt(**{**fields, **changes})


def written(value) -> bytes:
    """A message of this version with any content."""
    return b"\x01" + msgspec.msgpack.encode(value)


@given(BATCHES)
def test_what_is_said_comes_out_as_it_went_in(said):
    """Every field, at both ends of its range."""
    assert decode_gossip(encode_gossip(said)) == said


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data):
    """There is no third way, with or without the version in front."""
    for message in (data, b"\x01" + data):
        with contextlib.suppress(GossipDecodeError):
            decode_gossip(message)


@given(BATCHES, st.data())
def test_damaged_messages_are_refused_or_read(said, data):
    """A changed byte, a missing end: what is read then still keeps the bounds."""
    message = bytearray(encode_gossip(said))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(at, len(message))) :]
    try:
        heard = decode_gossip(bytes(message))
    except GossipDecodeError:
        return
    for each in heard.sent:
        try:
            keys, ends = unpack_blocks(each)
        except GossipDecodeError:
            continue
        assert len(keys) == len(ends)
        assert sorted(set(ends)) == ends
        assert not ends or ends[-1] <= each.num_bytes


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00" + encode_gossip(batch())[1:],
        b"\x02" + encode_gossip(batch())[1:],
        encode_gossip(batch()) + b"\x00",
        written({"sender": "a"}),
        written(["a/0", 1, 0]),
        written(["a/0", -1, 0, 0]),
        written(["a/0", 1, -1, 0]),
        written(["a/0", 1, 0, 7]),
        written(["", 1, 0, 0]),
        written(["a b", 1, 0, 0]),
        written(["a\n", 1, 0, 0]),
        written(["a" * 97, 1, 0, 0]),
        written(["a/0", 1, 0, 0, [[b"short", 0, 0, 0, 0]]]),
        written(["a/0", 1, 0, 0, [[b"r" * 8, -1, 0, 0, 0]]]),
        written(["a/0", 1, 0, 0, [[b"r" * 8, 1 << 60, 0, 0, 0]]]),
        written(["a/0", 1, 0, 0, [], [], [[0, 1]]]),
    ],
)
def test_what_this_version_does_not_write_is_refused(message):
    """Another version, a wrong type, a number below zero, a name that would break a log line."""
    with pytest.raises(GossipDecodeError):
        decode_gossip(message)


def test_refusals_do_not_quote():
    """Keys and names of a peer never reach a log."""
    with pytest.raises(GossipDecodeError) as refused:
        decode_gossip(written(["a/0", 1, 0, 0, [[b"secret", 0, 0, 0, 0]]]))
    assert "secret" not in str(refused.value)


def test_fields_that_a_later_release_appends_are_left_out():
    """Its version says whether they can be."""
    message = written(["a/0", 1, 0, 0, [], [], [], [], "new"])
    assert decode_gossip(message) == batch()


@pytest.mark.parametrize(
    "bad",
    [
        prompt(keys=b"k" * 31),
        prompt(keys=b"k" * 48),
        prompt(ends=pack_ends([20, 10])),
        prompt(ends=pack_ends([10, 10])),
        prompt(ends=pack_ends([0, 10])),
        prompt(num_bytes=19),
    ],
)
def test_blocks_that_do_not_fit_each_other_are_refused(bad):
    """One prompt is left out then, and not the message."""
    assert decode_gossip(encode_gossip(batch(sent=[bad]))).sent == [bad]
    with pytest.raises(GossipDecodeError):
        unpack_blocks(bad)


def test_of_a_long_prompt_the_leading_blocks_are_told():
    """A part of a chain from its beginning is true as well."""
    num = MAX_PROMPT_KEYS + 5
    keys = [index.to_bytes(16, "little") for index in range(num)]
    ends = [10 * (index + 1) for index in range(num)]
    told = prompt(keys=pack_keys(keys), ends=pack_ends(ends), num_bytes=10 * num)
    assert unpack_blocks(told) == (keys[:MAX_PROMPT_KEYS], ends[:MAX_PROMPT_KEYS])


def test_the_largest_batch_fits_a_message():
    """So no batch within the bounds can be refused for its length."""
    most, num = 1 << 53, MAX_BATCH_KEYS // MAX_PROMPT_KEYS
    long = prompt(
        number=most,
        keys=b"k" * 16 * MAX_PROMPT_KEYS,
        ends=pack_ends(range(1, MAX_PROMPT_KEYS + 1)),
        num_bytes=most,
        matched_tokens=most,
    )
    short = prompt(number=most, keys=b"", ends=b"", num_bytes=most, matched_tokens=most)
    largest = batch(
        loads=[LoadReport(b"r" * 8, most, most, most, most)] * MAX_BATCH_LOADS,
        sent=[long] * num + [short] * (MAX_BATCH_PROMPTS - num),
        outcomes=[Outcome(most, True, most, most, most)] * MAX_BATCH_PROMPTS,
        computed=[most] * MAX_BATCH_PROMPTS,
    )
    assert decode_gossip(encode_gossip(largest)) == largest


def test_messages_beyond_the_bounds_are_refused():
    """Before anything is made of them."""
    key = prompt(keys=b"k" * 16 * MAX_PROMPT_KEYS, ends=b"")
    num = MAX_BATCH_KEYS // MAX_PROMPT_KEYS + 1
    for message in (
        b"\x01" * (MAX_MESSAGE_BYTES + 1),
        written(batch(sent=[key] * num)),
        written(batch(sent=[prompt(keys=b"", ends=b"")] * (MAX_BATCH_PROMPTS + 1))),
        written(batch(loads=[LoadReport(b"r" * 8, 0, 0, 0, 0)] * (MAX_BATCH_LOADS + 1))),
        written(batch(sent=[prompt(keys=b"k" * 16 * (MAX_PROMPT_KEYS + 1))])),
    ):
        with pytest.raises(GossipDecodeError):
            decode_gossip(message)
