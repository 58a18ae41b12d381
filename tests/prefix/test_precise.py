"""The precise index holds what engines' events say, and matches whole chains only."""

import json
import os
from pathlib import Path

import pytest

from headstart.prefix.precise import PreciseIndex, Tier
from headstart.prefix.stream import EventStream, StreamStanding
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.wire.kv_events import (
    ClearedBlocks,
    KvEventBatch,
    RemovedBlocks,
    StoredBlocks,
    decode_batch,
    decode_sequence,
)

DATA = os.environ.get("HEADSTART_TEST_DATA")
CAPTURES = ("kv_capture_int64_sha256cbor_bs32", "kv_capture_bytes_sha256pickle_bs32")
SIZE = 4
TOKENS = tuple(range(100, 116))


def prompt(token_ids=(*TOKENS, 1), *, salt="", adapter="", sizes=(SIZE,)):
    root = block_root(adapter, salt)
    return TokenPrompt(len(token_ids), {size: block_keys(token_ids, size, root) for size in sizes})


def stored(hashes, token_ids=TOKENS, parent=None, size=SIZE, **fields):
    return StoredBlocks(tuple(hashes), parent, tuple(token_ids), size, **fields)


@pytest.fixture
def index():
    index = PreciseIndex()
    index.add_replica(0)
    index.add_replica(1)
    yield index
    index.check_integrity()


def tell(index, *events, slot=0, rank=0):
    index.apply(slot, rank, [KvEventBatch(0.0, events)])
    index.check_integrity()


def test_a_stored_chain_matches_from_its_start(index):
    tell(index, stored([1, 2, 3, 4]))
    assert index.match(prompt(), [0, 1]) == [16, 0]
    assert index.match(prompt((*TOKENS[:6], 7, 7, 7)), [0]) == [4]
    assert index.match(prompt((9, *TOKENS)), [0]) == [0]


def test_the_last_token_is_never_counted(index):
    tell(index, stored([1, 2, 3, 4]))
    assert index.match(prompt(TOKENS), [0]) == [12]
    assert index.match(prompt(()), [0]) == [0]


def test_a_child_is_found_through_its_parents_engine_hash(index):
    tell(index, stored([1], TOKENS[:4]), stored([2, 3, 4], TOKENS[4:], parent=1))
    assert index.match(prompt(), [0]) == [16]


def test_what_follows_an_unknown_block_is_counted_and_not_held(index):
    tell(index, stored([2, 3], TOKENS[4:12], parent=1))
    shown = index.statistics(0)
    assert (shown.num_unplaced, shown.num_blocks[Tier.DEVICE]) == (2, 0)
    tell(index, RemovedBlocks((2,)))
    assert index.statistics(0).num_unknown_removals == 1


def test_a_block_without_its_parent_does_not_count_until_the_parent_is_back(index):
    tell(index, stored([1, 2, 3, 4]), RemovedBlocks((2,)))
    assert index.match(prompt(), [0]) == [4]
    tell(index, stored([2], TOKENS[4:8], parent=1))
    assert index.match(prompt(), [0]) == [16]


def test_salt_and_adapter_separate_chains(index):
    tell(index, stored([1], TOKENS[:4], extra_keys=(("tenant-7",),)))
    tell(index, stored([2], TOKENS[:4], lora_name="law", extra_keys=(("law",),)))
    tell(index, stored([3], TOKENS[:4], lora_name="law", extra_keys=(("law", "tenant-7"),)), slot=1)
    slots = [0, 1]
    assert index.match(prompt(salt="tenant-7"), slots) == [4, 0]
    assert index.match(prompt(adapter="law"), slots) == [4, 0]
    assert index.match(prompt(adapter="law", salt="tenant-7"), slots) == [0, 4]
    assert index.match(prompt(), slots) == [0, 0]


def test_an_adapter_named_on_every_block_changes_nothing_more(index):
    tell(index, stored([1, 2], TOKENS[:8], lora_name="law", extra_keys=(("law",), ("law",))))
    assert index.match(prompt(adapter="law"), [0]) == [8]


def test_sglangs_salt_has_a_field_of_its_own_and_its_hashes_a_sign(index):
    tell(index, stored([-5, 6], TOKENS[:8], cache_salt="tenant-7", medium="GPU"))
    assert index.match(prompt(salt="tenant-7"), [0]) == [8]
    tell(index, RemovedBlocks((-5,), medium="GPU"))
    assert index.match(prompt(salt="tenant-7"), [0]) == [0]


def test_an_images_digest_ends_what_text_can_match(index):
    image = ("9f2c", 0)
    tell(index, stored([1, 2, 3], TOKENS[:12], extra_keys=(None, (image,), None)))
    assert index.match(prompt(), [0]) == [4]
    tell(index, RemovedBlocks((1, 2, 3)))
    assert index.statistics(0).num_unknown_removals == 0


def test_raw_byte_hashes_are_names_like_integers(index):
    first, second = b"\x01" * 32, b"\x02" * 32
    tell(index, stored([first], TOKENS[:4]), stored([second], TOKENS[4:8], parent=first))
    assert index.match(prompt(), [0]) == [8]
    tell(index, RemovedBlocks((second,)))
    assert index.match(prompt(), [0]) == [4]


def test_each_copy_of_a_block_has_to_be_removed(index):
    tell(index, stored([1], TOKENS[:4]), stored([1], TOKENS[:4]), RemovedBlocks((1,)))
    assert index.match(prompt(), [0]) == [4]
    tell(index, RemovedBlocks((1,)))
    assert index.match(prompt(), [0]) == [0]


def test_an_engine_that_counts_its_copies_is_believed(index):
    tell(index, stored([1], TOKENS[:4]), RemovedBlocks((1,), remaining_copy_counts=(1,)))
    assert index.match(prompt(), [0]) == [4]
    tell(index, RemovedBlocks((1,), remaining_copy_counts=(0,)))
    assert index.match(prompt(), [0]) == [0]


def test_two_engine_hashes_of_one_key_hold_it_together(index):
    tell(index, stored([1], TOKENS[:4]), stored([9], TOKENS[:4]), RemovedBlocks((1,)))
    assert index.match(prompt(), [0]) == [4]
    tell(index, RemovedBlocks((9,)))
    assert index.match(prompt(), [0]) == [0]


def test_a_hash_that_comes_to_mean_other_tokens_drops_what_it_meant(index):
    tell(index, stored([1], TOKENS[:4]), stored([1], TOKENS[4:8]))
    assert index.match(prompt(), [0]) == [0]
    assert index.match(prompt((*TOKENS[4:8], 1)), [0]) == [4]


def test_a_clear_empties_its_rank_only(index):
    tell(index, stored([1, 2, 3, 4]))
    tell(index, stored([1, 2], TOKENS[:8]), rank=1)
    tell(index, ClearedBlocks())
    assert index.match(prompt(), [0]) == [8]
    index.clear(0, 1)
    assert index.match(prompt(), [0]) == [0]


def test_a_reset_while_idle_is_noticed_with_the_next_request(index):
    """The engine tells of it only with its next step, together with what that step stored."""
    tell(index, stored([1, 2, 3, 4]))
    assert index.match(prompt(), [0]) == [16]
    tell(index, ClearedBlocks(), stored([1, 2], TOKENS[:8]))
    assert index.match(prompt(), [0]) == [8]


def test_a_chain_that_one_replica_grows_and_another_follows_is_one_for_both(index):
    tell(index, stored([1, 2, 3], TOKENS[:12]))
    for name, slot in ((4, 0), (1, 1), (2, 1), (3, 1), (4, 1)):
        parent = name - 1 if name > 1 else None
        at = 4 * (name - 1)
        tell(index, stored([name], TOKENS[at : at + 4], parent=parent), slot=slot)
    assert index.match(prompt(), [0, 1]) == [16, 16]
    for name, left in ((4, 12), (3, 8), (2, 4), (1, 0)):
        tell(index, RemovedBlocks((name,)))
        assert index.match(prompt(), [0, 1]) == [left, 16]


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (2, 4, 1, 3), (3, 1, 4, 2)])
def test_removals_in_any_order_leave_what_comes_before_the_first_hole(index, order):
    for slot in (0, 1):
        tell(index, stored([1, 2, 3, 4]), slot=slot)
    for count, name in enumerate(order, 1):
        tell(index, RemovedBlocks((name,)))
        assert index.match(prompt(), [0, 1]) == [4 * (min(order[:count]) - 1), 16]


def test_a_prefix_has_to_be_whole_within_one_rank(index):
    tell(index, stored([1, 2], TOKENS[:8]))
    tell(index, stored([1, 2, 3, 4]), RemovedBlocks((1,)), rank=1)
    assert index.match(prompt(), [0]) == [8]


def test_tiers_are_kept_apart_and_a_removal_names_its_medium(index):
    tell(index, stored([1, 2, 3, 4], medium="GPU"))
    tell(index, StoredBlocks((3, 4), None, (), 0, medium="CPU"))
    tell(index, RemovedBlocks((4,), medium="GPU"), RemovedBlocks((3,), medium="GPU"))
    assert index.match(prompt(), [0]) == [8]
    assert index.match_tiers(prompt(), 0) == {
        Tier.DEVICE: 8,
        Tier.HOST: 8,
        Tier.DISK: 0,
        Tier.REMOTE: 0,
    }
    tell(index, RemovedBlocks((4,), medium="CPU"))
    assert index.match_tiers(prompt(), 0)[Tier.HOST] == 4


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.DEVICE),
        ("gpu", Tier.DEVICE),
        ("CPU_PINNED", Tier.HOST),
        ("DISK", Tier.DISK),
        ("STORAGE", Tier.DISK),
        ("EXTERNAL", Tier.REMOTE),
        ("TAPE", Tier.REMOTE),
    ],
)
def test_every_medium_has_a_tier(index, medium, tier):
    tell(index, stored([1, 2, 3, 4], medium=medium))
    assert index.match_tiers(prompt(), 0)[tier] == 16


def test_groups_that_keep_a_window_are_left_out(index):
    sliding = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    tell(index, stored([1, 2, 3, 4], **full), stored([1, 2, 3, 4], **sliding))
    tell(index, RemovedBlocks((1, 2), group_idx=1))
    assert index.match(prompt(), [0]) == [16]
    assert index.statistics(0).num_ignored == 6
    tell(index, RemovedBlocks((4,), group_idx=0))
    assert index.match(prompt(), [0]) == [12]


def test_replicas_with_other_block_sizes_are_asked_with_theirs(index):
    tell(index, stored([1, 2, 3, 4]))
    tell(index, stored([1, 2], size=8), slot=1)
    assert index.block_sizes() == {4, 8}
    assert index.match(prompt(sizes=(4, 8)), [1, 0]) == [16, 16]
    assert index.match(prompt(sizes=(4,)), [1, 0]) == [0, 16]


def test_tokens_that_cannot_be_hashed_are_counted(index):
    tell(index, stored([1], (-1, 2, 3, 4)))
    assert index.statistics(0).num_unplaced == 1


def test_a_slot_that_is_given_away_again_starts_empty(index):
    tell(index, stored([1, 2, 3, 4]))
    tell(index, stored([1, 2], TOKENS[:8]), slot=1)
    index.remove_replica(0)
    index.add_replica(0)
    assert index.match(prompt(), [0, 1]) == [0, 8]
    tell(index, stored([1], TOKENS[:4]))
    assert index.match(prompt(), [0, 1]) == [4, 8]


def test_a_promise_counts_until_it_is_withdrawn(index):
    tell(index, stored([1], TOKENS[:4]))
    first, sibling = prompt(), prompt()
    index.promise(0, first, 4, now=0.0)
    assert index.match(sibling, [0, 1]) == [16, 0]
    index.withdraw(0, first)
    assert index.match(sibling, [0]) == [4]
    index.withdraw(0, first)


def test_two_promises_of_the_same_blocks_are_withdrawn_one_by_one(index):
    index.expect_block_size(0, SIZE)
    first, second = prompt(), prompt()
    index.promise(0, first, 0, now=0.0)
    index.promise(0, second, 0, now=0.0)
    index.withdraw(0, first)
    assert index.match(prompt(), [0]) == [16]
    index.withdraw(0, second)
    assert index.match(prompt(), [0]) == [0]


def test_a_promise_that_nobody_withdraws_ends_by_itself(index):
    index.expect_block_size(0, SIZE)
    index.promise(0, prompt(), 0, now=0.0)
    index.promise(0, prompt((5, 5, 5, 5, 5)), 0, now=1000.0)
    assert index.match(prompt(), [0]) == [0]


def test_a_promise_reaches_to_blocks_that_are_held_behind_it(index):
    tell(index, stored([1, 2, 3, 4]), RemovedBlocks((2,)))
    asked = prompt((*TOKENS[:8], 1))
    index.promise(0, asked, 4, now=0.0)
    assert index.match(prompt(), [0]) == [16]


@pytest.mark.skipif(DATA is None, reason="HEADSTART_TEST_DATA is not set")
@pytest.mark.parametrize("name", CAPTURES)
def test_in_captures_every_block_is_placed_and_every_removal_known(name):
    stream, index = EventStream(has_replay=False), PreciseIndex()
    index.add_replica(0)
    held, prompts = set(), {}
    for line in (Path(DATA) / "captures" / f"{name}.jsonl").read_text().splitlines():
        message = json.loads(line)
        payload = bytes.fromhex(message["payload_hex"])
        seq = decode_sequence(bytes.fromhex(message["seq_hex"]))
        step = stream.receive(seq, payload)
        assert step.standing is StreamStanding.COMPLETE
        index.apply(0, 0, step.batches)
        index.check_integrity()
        for event in decode_batch(payload).events:
            if isinstance(event, StoredBlocks):
                held.update(event.block_hashes)
                remember(prompts, event)
            elif isinstance(event, RemovedBlocks):
                held.difference_update(event.block_hashes)
            else:
                held.clear()
    shown = index.statistics(0)
    assert (shown.num_unplaced, shown.num_unknown_removals, shown.num_ignored) == (0, 0, 0)
    assert shown.num_blocks[Tier.DEVICE] == len(held)
    for block_hash in held:
        salt, token_ids, chain = prompts[block_hash]
        whole = next((i for i, name in enumerate(chain) if name not in held), len(chain))
        assert index.match(prompt((*token_ids, 1), salt=salt, sizes=(32,)), [0]) == [32 * whole]


def remember(prompts, event):
    """Note for each block which prompt ends with it, and the names of its blocks."""
    salt, token_ids, chain = prompts.get(event.parent_block_hash, ("", (), ()))
    if event.parent_block_hash is None and event.extra_keys and event.extra_keys[0]:
        (salt,) = event.extra_keys[0]
    for i, block_hash in enumerate(event.block_hashes):
        size = event.block_size
        token_ids = (*token_ids, *event.token_ids[i * size : (i + 1) * size])
        chain = (*chain, block_hash)
        prompts[block_hash] = (salt, token_ids, chain)
