"""KV-cache events on the wire, as vLLM and SGLang publish them; no sockets.

A message has three frames: topic (UTF-8), sequence number (8 bytes, big-endian, from 0) and a
msgpack payload, which is a batch `[ts, [event, …], dp_rank?]`. We write events as maps with a
`type`, as vLLM 0.24 and later do, and read both that and the older arrays that start with the
tag; a batch may be a map too (one release line). Fields that we do not know are passed over.

Reading is on the way of every block that every replica stores: the common form is decoded in one
typed pass, and only what does not fit it is looked at piece by piece.

Source: vLLM `vllm/distributed/kv_events.py`; SGLang `disaggregation/kv_events.py`; captures of a
running vLLM 0.32.
"""

import struct
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

BlockId = int | bytes
"""An engine's own name of a block: an integer (vLLM unsigned, SGLang signed) or raw bytes."""

ExtraKeys = tuple[Any, ...] | None

END_OF_REPLAY = struct.pack(">q", -1)
"""The sequence frame that ends a replay."""

_MAX_EVENTS_PER_BATCH = 1_000_000

_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)


class KvEventDecodeError(ValueError):
    """A payload or frame is not what engines publish; the stream cannot be trusted further."""


class UnknownKvEventError(KvEventDecodeError):
    """A batch holds events of a type that no release known to us sends.

    What such an event changed is unknown, so the index may be wrong from here on. The rest of the
    batch is well-formed.

    Attributes:
        batch: the events that are known.
        kinds: names of the others.
    """

    def __init__(self, batch: "KvEventBatch", kinds: frozenset[str]) -> None:
        shown = ", ".join(repr(kind) for kind in sorted(kinds)[:3])
        super().__init__(f"Unknown event type {shown}.")
        self.batch = batch
        self.kinds = kinds


class StoredBlocks(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="BlockStored"):
    """Full blocks became reusable, each the child of the one before.

    Attributes:
        block_hashes: one per block.
        parent_block_hash: the block before the first; None at the start of a prompt.
        token_ids: `len(block_hashes) * block_size` tokens. Empty where only the names are told:
            vLLM's CPU offloading stores blocks that it announced before on another medium.
        block_size: tokens per block; may be 0 without tokens.
        lora_id: adapter number; None without adapter.
        medium: where the blocks lie (`GPU`, `CPU`, `STORAGE`; SGLang `CPU_PINNED`, `DISK`,
            `EXTERNAL`); None is the engine's own memory.
        lora_name: adapter name; None without adapter.
        extra_keys: per block what else entered its hash (salt on the first block, adapter name).
        group_idx: KV-cache group of a hybrid model.
        kv_cache_spec_kind: kind of attention, e.g. `full_attention`.
        cache_salt: SGLang's place for the salt.
    """

    wire_type: ClassVar[str] = "BlockStored"

    block_hashes: tuple[BlockId, ...]
    parent_block_hash: BlockId | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[ExtraKeys, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None


class RemovedBlocks(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="BlockRemoved"):
    """Blocks lost their contents on one medium.

    Attributes:
        block_hashes: one per block.
        medium: see `StoredBlocks`.
        group_idx: see `StoredBlocks`.
        remaining_copy_counts: per block, how many copies of it are left there; None if not said.
    """

    wire_type: ClassVar[str] = "BlockRemoved"

    block_hashes: tuple[BlockId, ...]
    medium: str | None = None
    group_idx: int | None = None
    remaining_copy_counts: tuple[int, ...] | None = None


class ClearedBlocks(
    msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="AllBlocksCleared"
):
    """Every block was dropped at once."""

    wire_type: ClassVar[str] = "AllBlocksCleared"


WireKvEvent = StoredBlocks | RemovedBlocks | ClearedBlocks


class KvEventBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one engine step changed, in order.

    Attributes:
        ts: the engine's clock, seconds since 1970.
        events: in the order in which they happened.
        data_parallel_rank: which engine of a data-parallel group; None if not said.
    """

    ts: float
    events: tuple[WireKvEvent, ...]
    data_parallel_rank: int | None = None


def integer_block_hash(digest: bytes) -> int:
    """Return the integer by which vLLM publishes a hash: its last 8 bytes, big-endian, unsigned."""
    return int.from_bytes(digest[-8:], "big")


def encode_sequence(seq: int) -> bytes:
    """Return the sequence frame of `seq` (>= 0)."""
    return struct.pack(">Q", seq)


def decode_sequence(frame: bytes) -> int:
    """Return a sequence number; -1 is the end of a replay.

    Raises:
        KvEventDecodeError: the frame is not 8 bytes long.
    """
    if len(frame) != 8:
        raise KvEventDecodeError(f"A sequence frame has 8 bytes, this one {len(frame)}.")
    return int(struct.unpack(">q", frame)[0])


def encode_batch(batch: KvEventBatch) -> bytes:
    """Return the msgpack payload of a batch, its events as maps without default values."""
    events = [_to_map(event) for event in batch.events]
    body: list[object] = [batch.ts, events]
    if batch.data_parallel_rank is not None:
        body.append(batch.data_parallel_rank)
    return msgspec.msgpack.encode(body)


def decode_batch(payload: bytes) -> KvEventBatch:
    """Return the batch in a payload, whichever of the published forms it has.

    Raises:
        UnknownKvEventError: it holds an event of unknown type; the error carries the rest.
        KvEventDecodeError: it is no msgpack, or has another shape.

    Cost: about 0.04 us a token.
    """
    try:
        batch = _TYPED.decode(payload)
    except _BROKEN:
        return _decode_other_form(payload)
    _check(batch)
    return batch


_STORED_ROW = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED_ROW = ("block_hashes", "medium", "group_idx")
"""The order in which releases with arrays wrote the fields; what follows is of later releases."""

_FIELDS_WRITTEN = {
    StoredBlocks: (*_STORED_ROW, "cache_salt"),
    RemovedBlocks: (*_REMOVED_ROW, "remaining_copy_counts"),
    ClearedBlocks: (),
}
_ALWAYS_WRITTEN = frozenset(_STORED_ROW[: _STORED_ROW.index("extra_keys")])
"""vLLM's structs give these no default, so they are written even when they are nil."""


def _to_map(event: WireKvEvent) -> dict[str, object]:
    result: dict[str, object] = {"type": event.wire_type}
    for name in _FIELDS_WRITTEN[type(event)]:
        value = getattr(event, name)
        if value is not None or name in _ALWAYS_WRITTEN:
            result[name] = value
    return result


class _StoredRow(msgspec.Struct, gc=False, array_like=True, tag="BlockStored"):
    block_hashes: tuple[BlockId, ...]
    parent_block_hash: BlockId | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[ExtraKeys, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _RemovedRow(msgspec.Struct, gc=False, array_like=True, tag="BlockRemoved"):
    block_hashes: tuple[BlockId, ...]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedRow(msgspec.Struct, gc=False, array_like=True, tag="AllBlocksCleared"):
    pass


_Row = _StoredRow | _RemovedRow | _ClearedRow


class _BatchOfRows(msgspec.Struct, gc=False, array_like=True):
    ts: float
    events: tuple[_Row, ...]
    data_parallel_rank: int | None = None


_TYPED = msgspec.msgpack.Decoder(KvEventBatch)
_TYPED_ROWS = msgspec.msgpack.Decoder(_BatchOfRows)


def _from_row(row: _Row) -> WireKvEvent:
    if isinstance(row, _StoredRow):
        return StoredBlocks(*[getattr(row, name) for name in _STORED_ROW])
    if isinstance(row, _RemovedRow):
        return RemovedBlocks(row.block_hashes, row.medium, row.group_idx)
    return ClearedBlocks()


def _decode_other_form(payload: bytes) -> KvEventBatch:
    """Read events as arrays, as every release before 0.24 wrote them, or a rarer form."""
    try:
        rows = _TYPED_ROWS.decode(payload)
    except _BROKEN:
        return _decode_piecemeal(payload)
    batch = KvEventBatch(rows.ts, tuple(map(_from_row, rows.events)), rows.data_parallel_rank)
    _check(batch)
    return batch


def _decode_piecemeal(payload: bytes) -> KvEventBatch:
    """Read any of the forms, or say what is wrong with it."""
    try:
        body = msgspec.msgpack.decode(payload)
    except _BROKEN as exc:
        raise KvEventDecodeError(f"A payload of {len(payload)} bytes is no msgpack.") from exc
    ts, raw_events, rank = _batch_fields(body)
    if not isinstance(raw_events, list):
        raise KvEventDecodeError("A batch has a time and a list of events.")
    known: list[WireKvEvent] = []
    unknown: set[str] = set()
    for raw in raw_events:
        kind = _kind_of(raw)
        if kind in _BUILDERS:
            known.append(_BUILDERS[kind](raw))
        else:
            unknown.add(kind[:64])
    batch = KvEventBatch(_convert(ts, float), tuple(known), _convert(rank, int | None))
    _check(batch)
    if unknown:
        raise UnknownKvEventError(batch, frozenset(unknown))
    return batch


def _batch_fields(body: object) -> tuple[object, object, object]:
    if isinstance(body, list) and len(body) >= 2:
        return body[0], body[1], body[2] if len(body) > 2 else None
    if isinstance(body, dict):
        names = ("data_parallel_rank", "dp_rank", "attn_dp_rank")
        rank = next((body[name] for name in names if body.get(name) is not None), None)
        return body.get("ts"), body.get("events"), rank
    raise KvEventDecodeError("A batch is an array of two or more, or a map.")


def _kind_of(raw: object) -> str:
    kind: object = None
    if isinstance(raw, dict):
        kind = raw.get("type")
    elif isinstance(raw, list) and raw:
        kind = raw[0]
    if not isinstance(kind, str):
        raise KvEventDecodeError("An event is a map with a type, or an array that starts with one.")
    return kind


def _builder(event: type[WireKvEvent], row: type[_Row]) -> Callable[[Any], WireKvEvent]:
    def build(raw: object) -> WireKvEvent:
        if isinstance(raw, dict):
            result: WireKvEvent = _convert(raw, event)
            return result
        return _from_row(_convert(raw, row))

    return build


_BUILDERS = {
    StoredBlocks.wire_type: _builder(StoredBlocks, _StoredRow),
    RemovedBlocks.wire_type: _builder(RemovedBlocks, _RemovedRow),
    ClearedBlocks.wire_type: _builder(ClearedBlocks, _ClearedRow),
}


def _convert(value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except _BROKEN as exc:
        # The message names the field and the type found there, never a value.
        raise KvEventDecodeError(f"An event is malformed: {str(exc)[:200]}") from exc


def _check(batch: KvEventBatch) -> None:
    if len(batch.events) > _MAX_EVENTS_PER_BATCH:
        raise KvEventDecodeError(f"A batch of {len(batch.events)} events is too large.")
    for event in batch.events:
        if type(event) is StoredBlocks:
            num_tokens = len(event.token_ids)
            if num_tokens and num_tokens != len(event.block_hashes) * event.block_size:
                raise KvEventDecodeError(
                    f"{len(event.block_hashes)} blocks of {event.block_size} tokens "
                    f"do not hold {num_tokens} tokens."
                )
