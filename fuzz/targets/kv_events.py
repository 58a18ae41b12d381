"""KV events off a socket that anybody may write to: decoded, or `KvEventDecodeError`."""

from collections.abc import Hashable

from fuzz.target import Target
from headstart.wire.kv_events import (
    KvEventBatch,
    KvEventDecodeError,
    StoredBlocks,
    decode_batch,
    decode_sequence,
    encode_batch,
    encode_sequence,
)

_MAX_MESSAGE = 500


def check(data: bytes) -> Hashable:
    """A batch that is understood can be written again, and comes back the same."""
    try:
        seq = decode_sequence(data[:8])
        assert seq < 0 or encode_sequence(seq) == data[:8]
    except KvEventDecodeError:
        assert len(data) < 8
    try:
        batch = decode_batch(data)
    except KvEventDecodeError as error:
        assert len(str(error)) <= _MAX_MESSAGE, "the error carries the payload"
        return str(error)[:24]
    _check_batch(batch)
    return tuple(type(event).__name__ for event in batch.events[:3])


def _check_batch(batch: KvEventBatch) -> None:
    hash(batch.data_parallel_rank)
    for event in batch.events:
        if isinstance(event, StoredBlocks):
            num_tokens = len(event.block_hashes) * event.block_size
            assert len(event.token_ids) in (0, num_tokens)
    again = decode_batch(encode_batch(batch))
    # As text, because a time that is not a number equals nothing.
    assert repr(again) == repr(batch), "written and read again it is another batch"


TOKENS = (
    *(
        b"\x90",
        b"\x91",
        b"\x92",
        b"\x93",
        b"\x9a",
        b"\x80",
        b"\x81",
        b"\x82",
        b"\xc0",
        b"\xc2",
        b"\xc3",
    ),
    *(
        b"\xcb\x41\xd9\x00\x00\x00\x00\x00\x00",
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\x00",
        b"\x01",
    ),
    *(b"\xabBlockStored", b"\xacBlockRemoved", b"\xb0AllBlocksCleared", b"\xa4type", b"\xa2ts"),
    *(
        b"\xa6events",
        b"\xacblock_hashes",
        b"\xb1parent_block_hash",
        b"\xa9token_ids",
        b"\xaablock_size",
    ),
    *(b"\xa7lora_id", b"\xa6medium", b"\xa3GPU", b"\xaaextra_keys", b"\xa9group_idx", b"\x91\xc0"),
    *(b"\xb2data_parallel_rank", b"\xa7dp_rank", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\x04"),
    *(
        b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\xc4\x02ab",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ),
    *(
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xd4\x01\x00",
        b"\xa1\xff",
        b"\xc1",
        b"\x91" * 64,
        b"\x81\x01" * 32,
    ),
)

TARGET = Target("kv_events", check, TOKENS, share=1.5)
