"""KV-cache events on the wire, as vLLM and SGLang publish them; no sockets.

A message has three frames: topic (UTF-8), sequence number (8 bytes, big-endian, from 0) and a
msgpack payload, which is a batch `[ts, [event, …], dp_rank?]`. We write events as maps with a
`type`, as vLLM 0.24 and later do, and read both that and the older arrays that start with the
tag; a batch may be a map too (one release line).

Source: vLLM `vllm/distributed/kv_events.py`; captures of a running vLLM 0.32.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

BlockId = int | bytes
"""An engine's own name of a block: an integer (vLLM unsigned, SGLang signed) or raw bytes."""

ExtraKeys = tuple[object, ...] | None

END_OF_REPLAY = struct.pack(">q", -1)
"""The sequence frame that ends a replay."""

_MAX_EVENTS_PER_BATCH = 1_000_000


class KvEventDecodeError(ValueError):
    """A payload or frame is not what engines publish; the stream cannot be trusted further."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Full blocks became reusable, each the child of the one before.

    Attributes:
        block_hashes: one per block.
        parent_block_hash: the block before the first; None at the start of a prompt.
        token_ids: `len(block_hashes) * block_size` tokens.
        block_size: tokens per block.
        lora_id: adapter number; None without adapter.
        medium: where the blocks lie (`GPU`, `CPU`, `STORAGE` …).
        lora_name: adapter name; None without adapter.
        extra_keys: per block what else entered its hash (salt on the first block, adapter name).
        group_idx: KV-cache group of a hybrid model.
        kv_cache_spec_kind: kind of attention, e.g. `full_attention`.
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


@dataclass(frozen=True, slots=True)
class RemovedBlocks:
    """Blocks lost their contents on one medium."""

    wire_type: ClassVar[str] = "BlockRemoved"

    block_hashes: tuple[BlockId, ...]
    medium: str | None = None
    group_idx: int | None = None


@dataclass(frozen=True, slots=True)
class ClearedBlocks:
    """Every block was dropped at once."""

    wire_type: ClassVar[str] = "AllBlocksCleared"


WireKvEvent = StoredBlocks | RemovedBlocks | ClearedBlocks


@dataclass(frozen=True, slots=True)
class KvEventBatch:
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
        KvEventDecodeError: it is no msgpack, has another shape, or an event of unknown type.
    """
    try:
        body = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise KvEventDecodeError(f"A payload of {len(payload)} bytes is no msgpack.") from exc
    ts, events, rank = _batch_fields(body)
    if not isinstance(ts, int | float) or not isinstance(events, list):
        raise KvEventDecodeError("A batch has a time and a list of events.")
    if len(events) > _MAX_EVENTS_PER_BATCH:
        raise KvEventDecodeError(f"A batch of {len(events)} events is too large.")
    return KvEventBatch(
        ts=float(ts),
        events=tuple(_decode_event(event) for event in events),
        data_parallel_rank=_optional(rank, int, "data_parallel_rank"),
    )


_STORED_FIELDS = (
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
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")
_ALWAYS_WRITTEN = frozenset(_STORED_FIELDS[: _STORED_FIELDS.index("extra_keys")])
"""vLLM's structs give these no default, so they are written even when they are nil."""


def _to_map(event: WireKvEvent) -> dict[str, object]:
    fields: tuple[str, ...] = ()
    if isinstance(event, StoredBlocks):
        fields = _STORED_FIELDS
    elif isinstance(event, RemovedBlocks):
        fields = _REMOVED_FIELDS
    result: dict[str, object] = {"type": event.wire_type}
    for name in fields:
        value = getattr(event, name)
        if value is not None or name in _ALWAYS_WRITTEN:
            result[name] = value
    return result


def _batch_fields(body: object) -> tuple[object, object, object]:
    if isinstance(body, list) and len(body) >= 2:
        return body[0], body[1], body[2] if len(body) > 2 else None
    if isinstance(body, dict):
        rank = body.get("data_parallel_rank", body.get("dp_rank"))
        return body.get("ts"), body.get("events"), rank
    raise KvEventDecodeError("A batch is an array of two or more, or a map.")


def _decode_event(raw: object) -> WireKvEvent:
    if isinstance(raw, dict):
        return _build(raw.get("type"), raw)
    if isinstance(raw, list) and raw:
        names = _REMOVED_FIELDS if raw[0] == RemovedBlocks.wire_type else _STORED_FIELDS
        # Fields that a newer release appends are left out: we do not know their meaning.
        return _build(raw[0], dict(zip(names, raw[1:], strict=False)))
    raise KvEventDecodeError("An event is a map with a type, or an array that starts with a tag.")


def _build(kind: object, fields: Mapping[str, Any]) -> WireKvEvent:
    if kind == StoredBlocks.wire_type:
        return _build_stored(fields)
    if kind == RemovedBlocks.wire_type:
        return RemovedBlocks(
            block_hashes=_block_ids(fields.get("block_hashes")),
            medium=_optional(fields.get("medium"), str, "medium"),
            group_idx=_optional(fields.get("group_idx"), int, "group_idx"),
        )
    if kind == ClearedBlocks.wire_type:
        return ClearedBlocks()
    shown = kind[:64] if isinstance(kind, str | bytes) else type(kind)
    raise KvEventDecodeError(f"Unknown event type {shown!r}.")


def _build_stored(fields: Mapping[str, Any]) -> StoredBlocks:
    parent = fields.get("parent_block_hash")
    if parent is not None and not _is_block_id(parent):
        raise KvEventDecodeError("parent_block_hash is neither an integer nor bytes.")
    stored = StoredBlocks(
        block_hashes=_block_ids(fields.get("block_hashes")),
        parent_block_hash=parent,
        token_ids=_token_ids(fields.get("token_ids")),
        block_size=_required_int(fields.get("block_size"), "block_size"),
        lora_id=_optional(fields.get("lora_id"), int, "lora_id"),
        medium=_optional(fields.get("medium"), str, "medium"),
        lora_name=_optional(fields.get("lora_name"), str, "lora_name"),
        extra_keys=_extra_keys(fields.get("extra_keys")),
        group_idx=_optional(fields.get("group_idx"), int, "group_idx"),
        kv_cache_spec_kind=_optional(fields.get("kv_cache_spec_kind"), str, "kv_cache_spec_kind"),
    )
    if len(stored.token_ids) != len(stored.block_hashes) * stored.block_size:
        raise KvEventDecodeError(
            f"{len(stored.block_hashes)} blocks of {stored.block_size} tokens "
            f"do not hold {len(stored.token_ids)} tokens."
        )
    return stored


def _is_block_id(value: object) -> bool:
    return isinstance(value, int | bytes) and not isinstance(value, bool)


def _block_ids(value: object) -> tuple[BlockId, ...]:
    if not isinstance(value, list) or not all(_is_block_id(item) for item in value):
        raise KvEventDecodeError("block_hashes is not a list of integers or bytes.")
    return tuple(value)


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise KvEventDecodeError("token_ids is not a list of integers.")
    return tuple(value)


def _extra_keys(value: object) -> tuple[ExtraKeys, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise KvEventDecodeError("extra_keys is not a list with an entry per block.")
    return tuple(_one_blocks_keys(entry) for entry in value)


def _one_blocks_keys(entry: object) -> ExtraKeys:
    if entry is None:
        return None
    if not isinstance(entry, list):
        raise KvEventDecodeError("An entry of extra_keys is neither nil nor a list.")
    return tuple(tuple(key) if isinstance(key, list) else key for key in entry)


def _required_int(value: object, name: str) -> int:
    if type(value) is not int or value < 1:
        raise KvEventDecodeError(f"{name} is not a positive integer.")
    return value


def _optional(value: Any, kind: type[Any], name: str) -> Any:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise KvEventDecodeError(f"{name} is neither nil nor of type {kind.__name__}.")
    return value
