"""One request inside a simulated engine."""

from collections.abc import Sequence

from headstart.kv.free_queue import Block
from headstart.types import BlockHash, TokenId


class Job:
    """What an engine knows of a request; made by the fleet, changed by the engine.

    Attributes:
        number: of the request in the replay.
        keys: of its full blocks that may be cached, chained.
        ids: numbers that stand for those blocks, one each.
        input_tokens: of the prompt.
        output_tokens: to generate, >= 1.
        cached_tokens: that the cache spared, once it was admitted.
        computed_tokens: of the prompt, those that were cached included.
        num_stored: blocks of it that can be reused.
        blocks: that it holds.
        finish_step: the engine's step at whose end it is complete.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "finish_step",
        "ids",
        "input_tokens",
        "keys",
        "num_stored",
        "number",
        "output_tokens",
    )

    def __init__(
        self,
        number: int,
        keys: list[BlockHash],
        ids: Sequence[TokenId],
        input_tokens: int,
        output_tokens: int,
    ) -> None:
        self.number = number
        self.keys = keys
        self.ids = ids
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.num_stored = 0
        self.blocks: list[Block] = []
        self.finish_step = 0
