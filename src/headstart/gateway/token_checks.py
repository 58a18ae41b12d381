"""Which replicas' tokens are ours: a check for each replica whose tokenizer is known.

The checks themselves are `engines.tokenizers.check`'s; this holds one per replica as replicas come
and go, and gives models their tokenizers.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from headstart.clock import Clock
from headstart.engines.base import EngineKind
from headstart.engines.origin import Origin
from headstart.engines.questions import Questions
from headstart.engines.tokenizers.check import CheckStatistics, TokenCheck
from headstart.engines.tokenizers.comparison import MAX_ANSWER_BYTES, TokenizeComparer
from headstart.engines.tokenizers.config import TokenisingConfig, TokenizerConfig
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.gateway.tokenising import Tokenising
from headstart.prompt.prompt_tokens import Dialect
from headstart.prompt.token_keys import TokenPrompt
from headstart.types import JsonObject

TellAgreement = Callable[[int, bool, str], None]
"""Hears for a replica's slot whether its tokens are ours, and why not; whenever that changes."""

_CHAT_PATHS: Final = frozenset({"/v1/chat/completions"})


class TokenizerShelf:
    """Loads each tokenizer once, however many replicas have it.

    Args:
        config: how large their caches are.
    """

    def __init__(self, config: TokenisingConfig) -> None:
        self._cache_bytes = config.cache_bytes
        self._loaded: dict[tuple[object, ...], ModelTokenizer] = {}

    def get(self, config: TokenizerConfig, kind: EngineKind) -> ModelTokenizer:
        """Return a tokenizer, loaded now if it was not.

        Args:
            config: of the engine.
            kind: of the engine, whose way of rendering is used; vLLM's, but for the embedded one.

        Raises:
            ConfigError: it cannot be used.
        """
        variables = msgspec.json.encode(config.chat_template_kwargs, order="sorted")
        dialect: Dialect = "embedded" if kind == "embedded" else "vllm"
        key = replace(config, sample_s=0.0, chat_template_kwargs=None), dialect, variables
        if key not in self._loaded:
            # Loaded here: its libraries are large, and most gateways tokenise nothing.
            from headstart.engines.tokenizers.load import load_tokenizer

            self._loaded[key] = load_tokenizer(config, dialect, self._cache_bytes)
        return self._loaded[key]


class _Checked(msgspec.Struct, eq=False):
    """One replica under check."""

    tokenizer: ModelTokenizer
    check: TokenCheck
    questions: Questions
    task: asyncio.Task[None]


class TokenChecks:
    """Checks of all replicas of one gateway process. Build it inside a running event loop.

    Args:
        tokenising: told which models have which tokenizer.
        clock: for samples, and templates that ask for the time.
        tell: hears of changes.
    """

    def __init__(self, tokenising: Tokenising, clock: Clock, tell: TellAgreement) -> None:
        self._tokenising = tokenising
        self._clock = clock
        self._tell = tell
        self._checked: dict[int, _Checked] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add_replica(
        self,
        slot: int,
        origin: Origin,
        kind: EngineKind,
        model: str,
        tokenizer: ModelTokenizer,
        sample_s: float,
    ) -> None:
        """Begin to check a replica.

        Args:
            slot: of it; not among those that are checked.
            origin: its address.
            kind: of its engine.
            model: one that it serves, no adapter.
            tokenizer: ours, of that model.
            sample_s: see `TokenizerConfig`.
        """
        assert slot not in self._checked
        questions = Questions(origin, MAX_ANSWER_BYTES)
        comparer = TokenizeComparer(
            questions, tokenizer, self._local_time, is_embedded=kind == "embedded"
        )
        check = TokenCheck(origin.name, model, comparer, sample_s, partial(self._tell, slot))
        task = asyncio.get_running_loop().create_task(check.run(), name=f"tokens {origin.name}")
        self._checked[slot] = _Checked(tokenizer, check, questions, task)

    def remove_replica(self, slot: int) -> None:
        """Check it no longer; does nothing for one that is not checked."""
        checked = self._checked.pop(slot, None)
        if checked is not None:
            ending = asyncio.get_running_loop().create_task(_end(checked))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def models_found(self, slot: int, entries: Mapping[str, JsonObject]) -> None:
        """Take a replica's list of models: an adapter is tokenised as its base is.

        Args:
            slot: of the replica.
            entries: of `GET /v1/models`, by name; `parent` names an adapter's base.
        """
        checked = self._checked.get(slot)
        if checked is None:
            return
        for name, entry in entries.items():
            adapter = name if isinstance(entry.get("parent"), str) else ""
            self._tokenising.add_model(name, checked.tokenizer, adapter)

    def restarted(self, slot: int) -> None:
        """Hear that a replica is back and may be another engine now."""
        checked = self._checked.get(slot)
        if checked is not None:
            checked.check.restarted()

    def is_agreed(self, slot: int) -> bool:
        """Return whether a replica's tokens are ours; False for one that is not checked."""
        checked = self._checked.get(slot)
        return checked is not None and checked.check.is_agreed

    def answered(self, slot: int, tokens: TokenPrompt, input_tokens: int) -> None:
        """Hear of a response.

        Args:
            slot: of the replica.
            tokens: of its prompt.
            input_tokens: of its prompt, by the engine.

        Cost: 0.5 us.
        """
        checked = self._checked.get(slot)
        if checked is not None:
            checked.check.answered(tokens.num_tokens, input_tokens)

    def wants_sample(self, slot: int) -> bool:
        """Return whether a request that is sent now should be kept for `sample`."""
        checked = self._checked.get(slot)
        return checked is not None and checked.check.wants_sample(self._clock.monotonic())

    def sample(self, slot: int, path: str, model: str, body: bytes) -> None:
        """Compare a request that this replica has answered, and only now.

        Args:
            slot: of the replica.
            path: of the request.
            model: as the request names it.
            body: of the request.
        """
        checked = self._checked.get(slot)
        if checked is not None:
            now = self._clock.monotonic()
            checked.check.sample(model, body, now, is_chat=path in _CHAT_PATHS)

    def statistics(self) -> dict[int, CheckStatistics]:
        """Return what is known of each checked replica, by slot."""
        return {slot: checked.check.statistics() for slot, checked in self._checked.items()}

    async def close(self) -> None:
        """End all checks."""
        for slot in list(self._checked):
            self.remove_replica(slot)
        await asyncio.gather(*self._ending)

    def _local_time(self) -> datetime:
        return datetime.fromtimestamp(self._clock.time())  # local, as engines


async def _end(checked: _Checked) -> None:
    checked.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await checked.task
    await checked.questions.close()
