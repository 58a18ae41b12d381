"""Which models' prompts are tokenised, and with what: from replicas to models and back."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from headstart.clock import Clock
from headstart.engines.base import ReplicaConfig
from headstart.engines.origin import Origin
from headstart.engines.tokenizers.config import TokenisingConfig
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.errors import ConfigError
from headstart.gateway.token_checks import TokenChecks, TokenizerShelf
from headstart.gateway.token_side import TokenSide
from headstart.gateway.tokenising import Tokenising
from headstart.prefix.view import PrefixView
from headstart.types import JsonObject

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tokenized:
    """A replica whose tokenizer is known.

    Attributes:
        config: of the replica.
        origin: its address.
        tokenizer: ours.
        is_checked: it is compared with the engine's, since one of its models is known.
        models: that it serves.
    """

    config: ReplicaConfig
    origin: Origin
    tokenizer: ModelTokenizer
    is_checked: bool = False
    models: set[str] = field(default_factory=set)


class ModelTokens:
    """Tokenizers of replicas, and the tokens of requests for their models.

    Args:
        config: bounds.
        clock: see `Tokenising`.
        view: told whether tokens agree, and asked which blocks are wanted.

    Attributes:
        side: what exchanges use.
        tokenising: makes the tokens.
    """

    def __init__(self, config: TokenisingConfig, clock: Clock, view: PrefixView) -> None:
        self._clock = clock
        self._view = view
        self._shelf = TokenizerShelf(config)
        self.tokenising = Tokenising(config, clock)
        self._checks = TokenChecks(self.tokenising, clock, self._tell)
        self.side = TokenSide(self.tokenising, self._checks)
        self._replicas: dict[int, _Tokenized] = {}

    def add_replica(self, slot: int, config: ReplicaConfig, origin: Origin) -> None:
        """Know a replica; without a tokenizer nothing follows.

        A tokenizer that cannot be used is said in the log: the replica is routed to all the same.
        """
        if config.tokenizer is None:
            return
        try:
            tokenizer = self._shelf.get(config.tokenizer, config.kind)
        except ConfigError as error:
            _log.error("the tokenizer of replica %s: %s", config.name, error.message)
            return
        self._replicas[slot] = _Tokenized(config, origin, tokenizer)
        for model in config.models:
            self._add_model(slot, model)

    def models_found(self, slot: int, models: Mapping[str, JsonObject]) -> None:
        """Hear what a replica's list of models says."""
        for name, entry in models.items():
            if not isinstance(entry.get("parent"), str):
                self._add_model(slot, name)
        self._checks.models_found(slot, models)
        known = self._replicas.get(slot)
        if known is not None:
            known.models |= models.keys()

    def remove_replica(self, slot: int) -> None:
        """Forget a replica, and models that no other serves."""
        known = self._replicas.pop(slot, None)
        if known is None:
            return
        self._checks.remove_replica(slot)
        others = set().union(*(other.models for other in self._replicas.values()))
        for model in known.models - others:
            self.tokenising.remove_model(model)

    def restarted(self, slot: int) -> None:
        """Hear that a replica is back and may be another engine."""
        self._checks.restarted(slot)
        if slot in self._replicas:  # which is not to say that they differ
            self._view.tokens_agree(slot, None, self._clock.monotonic())

    def is_agreed(self, slot: int) -> bool | None:
        """Return whether a replica's tokens are ours; None if nothing is known of them."""
        return self._checks.is_agreed(slot) if slot in self._replicas else None

    def sweep(self) -> None:
        """Make keys for the sizes of block that there are now."""
        if self._replicas:
            sizes = self._view.block_sizes()
            for known in self._replicas.values():
                for model in known.models:
                    self.tokenising.set_block_sizes(model, sizes)

    async def close(self) -> None:
        """End checks and thread."""
        await self._checks.close()
        await self.tokenising.close()

    def _add_model(self, slot: int, model: str) -> None:
        known = self._replicas.get(slot)
        if known is None:
            return
        known.models.add(model)
        self.tokenising.add_model(model, known.tokenizer)
        if not known.is_checked:
            known.is_checked = True
            config = known.config
            assert config.tokenizer is not None
            self._checks.add_replica(
                slot,
                known.origin,
                config.kind,
                model,
                known.tokenizer,
                config.tokenizer.sample_s,
            )

    def _tell(self, slot: int, agree: bool, _reason: str) -> None:
        self._view.tokens_agree(slot, agree, self._clock.monotonic())
