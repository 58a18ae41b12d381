"""A vocabulary as prompts need it: pieces to ids, and what goes around a whole text."""

from collections.abc import Callable, Iterable, Sequence

import tokenizers

from headstart.errors import ModelUnavailable
from headstart.prompt.text_cutter import AddedToken, TextCutter

EncodePieces = Callable[[list[str]], list[list[int]]]
"""Ids of each text, no token put before or behind it."""

_PROBE = "a"


class TextEncoder:
    """Tokenises whole texts or pieces; remembers nothing. Safe to share between threads.

    Args:
        encode: of the vocabulary.
        added_tokens: of the vocabulary.
        first_ids: what begins a text that asks for special tokens.
        last_ids: what ends it.
        repeats_first: they are put before a text that already begins with them, too.

    Attributes:
        encode: as given.
        cut: text to pieces, see `TextCutter`.
    """

    __slots__ = ("_first_ids", "_last_ids", "_repeats_first", "cut", "encode")

    def __init__(
        self,
        encode: EncodePieces,
        added_tokens: Iterable[AddedToken],
        *,
        first_ids: Sequence[int] = (),
        last_ids: Sequence[int] = (),
        repeats_first: bool = True,
    ) -> None:
        self.encode = encode
        self.cut = TextCutter(added_tokens).cut
        self._first_ids = list(first_ids)
        self._last_ids = list(last_ids)
        self._repeats_first = repeats_first

    def first_ids(self, starts_with: Sequence[int]) -> list[int]:
        """Return what is put before a text that asks for special tokens.

        Args:
            starts_with: ids of the text, at least as many as there are to put.
        """
        first = self._first_ids
        if first and not self._repeats_first and list(starts_with[: len(first)]) == first:
            return []
        return first

    @property
    def last_ids(self) -> list[int]:
        """What is put behind a text that asks for special tokens."""
        return self._last_ids

    def ids(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the ids of a whole text, uncut."""
        (ids,) = self.encode([text])
        return [*self.first_ids(ids), *ids, *self._last_ids] if adds_special else ids


def encoder_of(backend: tokenizers.Tokenizer) -> TextEncoder:
    """Return the encoder of a Hugging Face tokenizer, whose truncation and padding are turned off.

    Raises:
        ModelUnavailable: it puts special tokens inside a text, and not around it.
    """
    backend.no_truncation()
    backend.no_padding()

    def encode(texts: list[str]) -> list[list[int]]:
        # Batches let go of the interpreter's lock.
        return [each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=False)]

    added = [
        AddedToken(
            token.content,
            is_normalized=token.normalized,
            strips_left=token.lstrip,
            is_single_word=token.single_word,
        )
        for token in backend.get_added_tokens_decoder().values()
    ]
    first_ids, last_ids = _around(backend)
    return TextEncoder(encode, added, first_ids=first_ids, last_ids=last_ids)


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    plain: list[int] = backend.encode(_PROBE, add_special_tokens=False).ids
    whole: list[int] = backend.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if whole[start:end] == plain:
            return whole[:start], whole[end:]
    raise ModelUnavailable(
        "the tokenizer's post-processor puts special tokens inside a text; this is not supported"
    )
