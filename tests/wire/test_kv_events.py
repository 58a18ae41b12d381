"""KV events are written as vLLM 0.32 writes them and read in every form that was published."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.wire.kv_events import (
    END_OF_REPLAY,
    ClearedBlocks,
    KvEventBatch,
    KvEventDecodeError,
    RemovedBlocks,
    StoredBlocks,
    UnknownKvEventError,
    decode_batch,
    decode_sequence,
    encode_batch,
    encode_sequence,
    integer_block_hash,
)

DATA = os.environ.get("HEADSTART_TEST_DATA")
CAPTURES = ("kv_capture_int64_sha256cbor_bs32", "kv_capture_bytes_sha256pickle_bs32")

BATCH = KvEventBatch(
    1.5,
    (
        RemovedBlocks((7,), medium="GPU", group_idx=0),
        StoredBlocks(
            (11, 12),
            10,
            (1, 2, 3, 4),
            2,
            medium="GPU",
            extra_keys=(("tenant-7",), None),
            group_idx=0,
        ),
        ClearedBlocks(),
    ),
    0,
)


@pytest.mark.skipif(DATA is None, reason="HEADSTART_TEST_DATA is not set")
@pytest.mark.parametrize("name", CAPTURES)
def test_captured_payloads_decode_and_encode_to_the_same_bytes(name):
    lines = (Path(DATA) / "captures" / f"{name}.jsonl").read_text().splitlines()
    assert lines
    for line in lines:
        message = json.loads(line)
        payload = bytes.fromhex(message["payload_hex"])
        batch = decode_batch(payload)
        assert batch.events
        assert encode_batch(batch) == payload
        seq = decode_sequence(bytes.fromhex(message["seq_hex"]))
        assert encode_sequence(seq).hex() == message["seq_hex"]


@pytest.mark.skipif(DATA is None, reason="HEADSTART_TEST_DATA is not set")
def test_captures_hold_stores_removals_clears_and_salts():
    kinds = set()
    salts = set()
    for name in CAPTURES:
        for line in (Path(DATA) / "captures" / f"{name}.jsonl").read_text().splitlines():
            for event in decode_batch(bytes.fromhex(json.loads(line)["payload_hex"])).events:
                kinds.add(type(event))
                if isinstance(event, StoredBlocks) and event.extra_keys and event.extra_keys[0]:
                    salts.update(event.extra_keys[0])
    assert kinds == {StoredBlocks, RemovedBlocks, ClearedBlocks}
    assert "tenant-7" in salts


def test_events_are_written_as_maps_without_fields_at_their_default():
    ts, events, rank = msgspec.msgpack.decode(encode_batch(BATCH))
    assert (ts, rank) == (1.5, 0)
    assert events[0] == {
        "type": "BlockRemoved",
        "block_hashes": [7],
        "medium": "GPU",
        "group_idx": 0,
    }
    assert events[1]["extra_keys"] == [["tenant-7"], None]
    assert events[1]["lora_id"] is None
    assert "kv_cache_spec_kind" not in events[1]
    assert events[2] == {"type": "AllBlocksCleared"}


def test_a_batch_without_rank_has_two_elements():
    assert len(msgspec.msgpack.decode(encode_batch(KvEventBatch(0.0, ())))) == 2


def test_events_as_arrays_with_the_tag_first_decode_to_the_same():
    arrays = [
        1.5,
        [
            ["BlockRemoved", [7], "GPU", 0],
            [
                "BlockStored",
                [11, 12],
                10,
                [1, 2, 3, 4],
                2,
                None,
                "GPU",
                None,
                [["tenant-7"], None],
                0,
            ],
            ["AllBlocksCleared"],
        ],
        0,
    ]
    assert decode_batch(msgspec.msgpack.encode(arrays)) == BATCH


def test_short_arrays_of_old_releases_and_appended_fields_of_new_ones_decode():
    old = ["BlockStored", [1], None, [5, 6], 2, None]
    new = ["BlockStored", [1], None, [5, 6], 2, None, None, None, None, None, None, 4096, "local"]
    for event in (old, new):
        (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [event]])).events
        assert decoded == StoredBlocks((1,), None, (5, 6), 2)


@pytest.mark.parametrize("rank_key", ["data_parallel_rank", "dp_rank", "attn_dp_rank"])
def test_a_batch_as_a_map_decodes_to_the_same(rank_key):
    ts, events, rank = msgspec.msgpack.decode(encode_batch(BATCH))
    payload = msgspec.msgpack.encode({"ts": ts, "events": events, rank_key: rank})
    assert decode_batch(payload) == BATCH


def test_sglangs_salt_is_read_and_its_session_passed_over():
    event = {
        "type": "BlockStored",
        "block_hashes": [-7],
        "parent_block_hash": None,
        "token_ids": [5],
        "block_size": 1,
        "lora_id": None,
        "medium": "CPU_PINNED",
        "cache_salt": "tenant-7",
        "session_id": "s-1",
    }
    (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [event], None])).events
    assert decoded == StoredBlocks((-7,), None, (5,), 1, medium="CPU_PINNED", cache_salt="tenant-7")


def test_offloaded_blocks_are_announced_by_their_names_alone():
    event = {
        "type": "BlockStored",
        "block_hashes": [b"\x01" * 32],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "locality": "local",
    }
    (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [event]])).events
    assert (decoded.block_hashes, decoded.token_ids) == ((b"\x01" * 32,), ())


def test_a_removal_may_say_how_many_copies_are_left():
    event = {"type": "BlockRemoved", "block_hashes": [1], "remaining_copy_counts": [2]}
    (decoded,) = decode_batch(msgspec.msgpack.encode([0.0, [event]])).events
    assert decoded.remaining_copy_counts == (2,)
    assert decode_batch(encode_batch(KvEventBatch(0.0, (decoded,)))).events == (decoded,)


def test_maps_and_arrays_may_stand_in_one_batch():
    events = [["BlockRemoved", [1]], {"type": "BlockRemoved", "block_hashes": [2]}]
    decoded = decode_batch(msgspec.msgpack.encode([0.0, events])).events
    assert decoded == (RemovedBlocks((1,)), RemovedBlocks((2,)))


@pytest.mark.parametrize("odd", [["BlockMoved", [1]], {"type": "BlockMoved", "to": "DISK"}])
def test_an_unknown_type_of_event_is_an_error_that_carries_the_rest(odd):
    payload = msgspec.msgpack.encode([0.0, [odd, ["BlockRemoved", [1]]], 3])
    with pytest.raises(UnknownKvEventError, match="BlockMoved") as caught:
        decode_batch(payload)
    assert caught.value.kinds == {"BlockMoved"}
    assert caught.value.batch == KvEventBatch(0.0, (RemovedBlocks((1,)),), 3)


def test_signed_hashes_of_sglang_stay_signed():
    payload = msgspec.msgpack.encode([0.0, [["BlockRemoved", [-5]]]])
    assert decode_batch(payload).events == (RemovedBlocks((-5,)),)


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["late", []]),
        msgspec.msgpack.encode([1.0, [17]]),
        msgspec.msgpack.encode([1.0, [["BlockMoved", [1]]]]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": "abc"}]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], "x", [1], 1, None]]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1, 2, 3], 2, None]]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [True, 2], 2, None]]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1], 0, None]]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1.5], 1, None]]]),
        msgspec.msgpack.encode([1.0, [{"block_hashes": [1]}]]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockStored", "block_hashes": [1]}]]),
        msgspec.msgpack.encode({"ts": 1.0, "events": {}}),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1], 1, "lora"]]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1], 1, None, None, None, "k"]]]),
    ],
)
def test_anything_else_is_a_decode_error(body):
    with pytest.raises(KvEventDecodeError):
        decode_batch(body)


def test_a_hostile_payload_is_a_decode_error_that_does_not_carry_it():
    with pytest.raises(KvEventDecodeError):
        decode_batch(b"\x91" * 5000)
    with pytest.raises(KvEventDecodeError) as caught:
        decode_batch(msgspec.msgpack.encode([1.0, [["x" * 5000]]]))
    assert len(str(caught.value)) < 200


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_raise_the_decode_error(payload):
    try:
        batch = decode_batch(payload)
    except KvEventDecodeError:
        return
    assert isinstance(batch, KvEventBatch)


@given(st.binary(min_size=8, max_size=64))
def test_the_integer_hash_is_the_digests_last_eight_bytes(digest):
    assert integer_block_hash(digest).to_bytes(8, "big") == digest[-8:]


def test_the_sequence_that_ends_a_replay_reads_as_minus_one():
    assert decode_sequence(END_OF_REPLAY) == -1
    with pytest.raises(KvEventDecodeError):
        decode_sequence(b"\0" * 7)
