"""What gateway processes tell each other about the replicas that they share; no sockets.

A message is one byte of version and a MessagePack array (`GossipBatch`). It stands for itself, so
that any of them may be lost:

* Load is told as it is and not as it has changed. A message that is lost is made good by the next
  one about the same replica, and by a snapshot of all of them after a second at the latest.
* A prompt comes with its whole chain of keys, and not with those that are new since the one
  before, which a receiver that missed that one could not place. That is 20 bytes a block of a
  kilobyte. Keys of its tokens, sixty times as dense, come only for what the replica must compute.
* Only what becomes of a prompt refers to something earlier, by its number; where that is unknown,
  nothing is learned.

Keys are hashes of prompts. Who knows most of a prompt can find the rest by trying if he sees one,
so messages leave a host encrypted only (`gateway.gossip.links`).
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from operator import lt
from typing import Annotated, Final

import msgspec
from msgspec import Meta

VERSION: Final = 1
"""Raised with every change that an older reader would misread; others' messages are left alone."""

REPLICA_ID_BYTES: Final = 8
KEY_BYTES: Final = 16
_END_BYTES: Final = 4

MAX_PROMPT_KEYS: Final = 4096
"""Of one prompt; of a longer one the leading keys are told. 4 MB of prompt in blocks of 1 KB."""

MAX_BLOCK_SIZES: Final = 4
MAX_BATCH_KEYS: Final = 8192
MAX_BATCH_PROMPTS: Final = 1024
MAX_BATCH_LOADS: Final = 4096
MAX_MESSAGE_BYTES: Final = 1 << 20
"""Above what the bounds before allow; a longer one is not looked at."""

MAX_PROMPT_BYTES: Final = (1 << 32) - 1
"""Of a longer one nothing is told: its ends would not fit."""

ReplicaId = Annotated[bytes, Meta(min_length=REPLICA_ID_BYTES, max_length=REPLICA_ID_BYTES)]
"""A replica's name and address as a digest: its slot differs from process to process."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]

SenderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:/-]{1,96}\Z")]
"""Which process speaks; it is shown in logs, so nothing else is let in."""


class GossipDecodeError(ValueError):
    """A message is not what this version writes."""


class Kind(IntEnum):
    """What a batch is: the newest, everything, or the last."""

    CHANGES = 0
    SNAPSHOT = 1
    FAREWELL = 2


class LoadReport(msgspec.Struct, frozen=True, array_like=True):
    """What one process has open on one replica now.

    Attributes:
        replica: which.
        in_flight: requests sent and not ended.
        num_pending: of these, without a first token.
        pending_tokens: uncached prompt tokens of those.
        active_tokens: KV that its requests have added to what is pinned.
    """

    replica: ReplicaId
    in_flight: Count
    num_pending: Count
    pending_tokens: Count
    active_tokens: Count


class TokenKeys(msgspec.Struct, frozen=True, array_like=True):
    """Keys of a tokenised prompt's blocks, from the first that the replica is not known to hold.

    Those before it are in the index of whoever hears the replica's events, as they are in the
    sender's.

    Attributes:
        block_size: tokens in a block.
        keys: 16 bytes each.
    """

    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    keys: Annotated[bytes, Meta(max_length=MAX_PROMPT_KEYS * KEY_BYTES)]


class SentPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt that went to a replica.

    Attributes:
        number: by which its outcome refers to it; unique in a sender's life.
        replica: which.
        keys: its keys, 16 bytes each, first block first.
        ends: bytes of prompt up to the end of each block, as little-endian 32-bit numbers.
        num_bytes: of the whole prompt.
        matched_tokens: what the sender predicted; None if it asked no index.
        num_tokens: of the prompt; None if it was not tokenised.
        token_keys: for each size of block.
    """

    number: Count
    replica: ReplicaId
    keys: Annotated[bytes, Meta(max_length=MAX_PROMPT_KEYS * KEY_BYTES)]
    ends: Annotated[bytes, Meta(max_length=MAX_PROMPT_KEYS * _END_BYTES)]
    num_bytes: Count
    matched_tokens: Count | None
    num_tokens: Count | None = None
    token_keys: Annotated[Sequence[TokenKeys], Meta(max_length=MAX_BLOCK_SIZES)] = ()

    @property
    def num_keys(self) -> int:
        """How many keys it has."""
        num_bytes = len(self.keys) + sum(len(each.keys) for each in self.token_keys)
        return num_bytes // KEY_BYTES


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What came of a prompt.

    Attributes:
        number: the prompt's.
        is_computed: the replica has computed it: a token was seen.
        input_tokens: as the engine reports; None if it does not. Likewise the next two.
        cached_tokens: of these, taken from the cache.
        output_tokens: generated.
    """

    number: Count
    is_computed: bool
    input_tokens: Count | None = None
    cached_tokens: Count | None = None
    output_tokens: Count | None = None


class GossipBatch(msgspec.Struct, frozen=True, array_like=True):
    """One message.

    Attributes:
        sender: the process that speaks; keeps its name over restarts where it can.
        epoch: when this life of the sender began, in ns since 1970: a later one ends the earlier.
        number: of the message in this life, from 0: a gap is a loss.
        kind: `SNAPSHOT` has the load of every replica that has some; others are without.
        loads: of the replicas whose load has changed.
        sent: prompts sent since the message before.
        outcomes: of these and earlier ones.
        computed: numbers of prompts whose answer has begun.
    """

    sender: SenderName
    epoch: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    number: Count
    kind: Kind
    loads: Annotated[Sequence[LoadReport], Meta(max_length=MAX_BATCH_LOADS)] = ()
    sent: Annotated[Sequence[SentPrompt], Meta(max_length=MAX_BATCH_PROMPTS)] = ()
    outcomes: Annotated[Sequence[Outcome], Meta(max_length=MAX_BATCH_PROMPTS)] = ()
    computed: Annotated[Sequence[Count], Meta(max_length=MAX_BATCH_PROMPTS)] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(GossipBatch)
_VERSION_BYTE: Final = bytes([VERSION])


def encode_gossip(batch: GossipBatch) -> bytes:
    """Return the message; what it holds is within the bounds of this module."""
    data = _VERSION_BYTE + _encoder.encode(batch)
    assert len(data) <= MAX_MESSAGE_BYTES
    return data


def decode_gossip(data: bytes) -> GossipBatch:
    """Return what a message says.

    Raises:
        GossipDecodeError: another version wrote it, or it is malformed or out of bounds. The error
            says nothing of its content.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise GossipDecodeError(f"A message of {len(data)} bytes is too long.")
    if data[:1] != _VERSION_BYTE:
        raise GossipDecodeError(f"This is not version {VERSION}.")
    try:
        batch = _decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GossipDecodeError(f"A message of {len(data)} bytes cannot be read.") from error
    if sum(prompt.num_keys for prompt in batch.sent) > MAX_BATCH_KEYS:
        raise GossipDecodeError("A message has too many keys.")
    return batch


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Return the leading keys of a prompt as one string of bytes."""
    return b"".join(keys[:MAX_PROMPT_KEYS])


def pack_ends(ends: Sequence[int]) -> bytes:
    """Return where the leading blocks end as one string of bytes."""
    ends = ends[:MAX_PROMPT_KEYS]
    return struct.pack(f"<{len(ends)}I", *ends)


def unpack_blocks(prompt: SentPrompt) -> tuple[list[bytes], list[int]]:
    """Return a prompt's keys and where its blocks end.

    Raises:
        GossipDecodeError: their numbers differ, or the ends do not ascend within the prompt.

    Cost: about 0.15 us a block.
    """
    keys = unpack_keys(prompt.keys)
    if len(prompt.ends) != len(keys) * _END_BYTES:
        raise GossipDecodeError("A prompt's keys and ends do not fit each other.")
    ends = list(struct.unpack(f"<{len(keys)}I", prompt.ends))
    if not all(map(lt, [0, *ends], ends)) or (ends and ends[-1] > prompt.num_bytes):
        raise GossipDecodeError("A prompt's ends do not ascend within it.")
    return keys, ends


def unpack_keys(data: bytes) -> list[bytes]:
    """Return the keys that `pack_keys` joined.

    Raises:
        GossipDecodeError: the last one is not whole.
    """
    num_keys, rest = divmod(len(data), KEY_BYTES)
    if rest:
        raise GossipDecodeError("A key is not whole.")
    # Ten times as quick as slices.
    return list(struct.unpack("16s" * num_keys, data))
