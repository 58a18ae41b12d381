"""One model's tokenizer and chat template, as an engine uses them."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from headstart.prompt.lru_table import TableStatistics
from headstart.prompt.prompt_tokens import PromptReader
from headstart.prompt.token_cache import DEFAULT_CACHE_BYTES, TokenCache
from headstart.prompt.token_keys import TokenPrompt, block_keys
from headstart.types import JsonObject, PrefixKey

if TYPE_CHECKING:
    from headstart.prompt.text_encoder import TextEncoder


class ModelTokenizer:
    """From bodies to tokens.

    Args:
        source: the file or folder that it comes from, for messages.
        reader: renders.
        encoder: tokenises.
        special_texts: some of the vocabulary's special tokens, for checks that write them in text.
        cache_bytes: for text seen before.
    """

    __slots__ = ("_cache", "_encoder", "_reader", "source", "special_texts")

    def __init__(
        self,
        source: str,
        reader: PromptReader,
        encoder: "TextEncoder",
        *,
        special_texts: Sequence[str] = (),
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.source = source
        self.special_texts = tuple(special_texts)
        self._reader = reader
        self._encoder = encoder
        self._cache = TokenCache(encoder, cache_bytes)

    @property
    def reads_clock(self) -> bool:
        """The same body gives other tokens at another time."""
        return self._reader.reads_clock

    def token_ids(self, body: JsonObject, *, is_chat: bool, now: datetime) -> list[int] | None:
        """Return a body's ids, from nothing remembered; None if they cannot be known.

        For checks: the text is tokenised whole, so that they also check the cutting. Any thread.
        """
        prompt = self._reader.read(body, is_chat=is_chat, now=now)
        if prompt is None:
            return None
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        return self._encoder.ids(prompt.text, adds_special=prompt.adds_special)

    def prompt(
        self,
        body: JsonObject,
        *,
        is_chat: bool,
        now: datetime,
        root: PrefixKey,
        block_sizes: Sequence[int],
    ) -> TokenPrompt | None:
        """Return a body's tokens, counted and as keys; None if they cannot be known.

        For one thread, whichever that is: it fills the cache.

        Args:
            body: of a request.
            is_chat: its messages are rendered; else its prompt is taken.
            now: local time, for templates that ask.
            root: of its keys (`token_keys.block_root`).
            block_sizes: for each of these there are keys.
        """
        prompt = self._reader.read(body, is_chat=is_chat, now=now)
        if prompt is None:
            return None
        ids = prompt.token_ids
        if ids is not None:
            return TokenPrompt(
                len(ids), {size: block_keys(ids, size, root) for size in block_sizes}
            )
        return self._cache.prompt(
            prompt.text, root=root, block_sizes=block_sizes, adds_special=prompt.adds_special
        )

    def forget(self) -> None:
        """Forget all text seen before."""
        self._cache.clear()

    def statistics(self) -> dict[str, TableStatistics]:
        """Return what the cache's tables hold and did."""
        return self._cache.statistics()
