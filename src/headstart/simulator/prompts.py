"""A trace's requests as gateways and engines see them; made once and used for every replay."""

from collections.abc import Sequence
from typing import cast

import msgspec

from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.simulator.knowledge import BYTES_PER_TOKEN
from headstart.simulator.sight import block_key
from headstart.simulator.trace import TraceRequest
from headstart.types import BlockHash, PrefixKey, TokenId


class SimulatedPrompt(msgspec.Struct, frozen=True):
    """One request's prompt.

    Attributes:
        keys: for a gateway that counts bytes.
        tokens: for one that counts tokens.
        block_hashes: for an engine: of the full blocks that it may reuse.
        block_ids: numbers that stand for them.
        session: the name that its client would give it.
    """

    keys: PromptKeys
    tokens: TokenPrompt
    block_hashes: list[BlockHash]
    block_ids: tuple[TokenId, ...]
    session: str


def prepare(requests: Sequence[TraceRequest], block_tokens: int) -> list[SimulatedPrompt]:
    """Return the prompts of `requests`; blocks that are the same share their keys."""
    known: dict[int, PrefixKey] = {}
    return [_prepare(request, block_tokens, known) for request in requests]


def _prepare(
    request: TraceRequest, block_tokens: int, known: dict[int, PrefixKey]
) -> SimulatedPrompt:
    # The last token is always computed, and only full blocks are kept.
    num_blocks = max(request.input_tokens - 1, 0) // block_tokens
    ids = request.blocks[:num_blocks]
    keys = []
    for number in ids:
        key = known.get(number)
        if key is None:
            key = known[number] = block_key(number)
        keys.append(key)
    num_bytes = block_tokens * BYTES_PER_TOKEN
    ends = list(range(num_bytes, num_bytes * len(keys) + 1, num_bytes))
    return SimulatedPrompt(
        PromptKeys(keys, ends, request.input_tokens * BYTES_PER_TOKEN),
        TokenPrompt(request.input_tokens, {block_tokens: keys}),
        cast("list[BlockHash]", keys),
        cast("tuple[TokenId, ...]", ids),
        str(request.session) if request.session >= 0 else "",
    )
