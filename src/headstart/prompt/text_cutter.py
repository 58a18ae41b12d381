r"""Cut text where a tokenizer cuts it anyway, so that each piece can be tokenised by itself.

Theory of operation: before anything else a tokenizer looks for its added tokens (`<|im_end|>`,
`<s>` …) in the raw text, leftmost first and the longest at each place; what lies between two of
them is normalised, split and merged without a look at the rest. So the ids of a text are those of
its pieces, one after the other, if each piece begins at an added token:

    <|im_start|>user\nHi<|im_end|>\n   →   <|im_start|>user\nHi  |  <|im_end|>\n

Pieces begin with their token, not behind it: what is first in a text is treated differently by some
vocabularies (a space is put before it), and no later piece may look as if it were first.

Not every added token is a safe place. One that takes in the spaces before it (`lstrip`), that
counts only between words (`single_word`) or that is looked for in normalised text reaches over its
own start. One that begins with a space could be reached by the token before it (`rstrip`), and one
that begins with a letter is looked at by a `single_word` token before it. They stay inside pieces.

Source: Hugging Face tokenizers, `added_vocabulary.rs` (`find_matches`, `extract_and_normalize`).
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

_END: Final = ""
"""Marks in a trie of words that one ends here."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is found in the text before it is split.

    Attributes:
        text: its characters, at least one.
        is_normalized: it is looked for in normalised text only.
        strips_left: it takes in the spaces before it.
        is_single_word: it counts only where no letter is next to it.
    """

    text: str
    is_normalized: bool = False
    strips_left: bool = False
    is_single_word: bool = False

    @property
    def is_safe_cut(self) -> bool:
        """Return whether a piece may begin with it."""
        first = self.text[0]
        if self.is_normalized or self.strips_left or self.is_single_word:
            return False
        return not (first.isspace() or first.isalnum() or first == "_")


class TextCutter:
    """Cuts at one vocabulary's added tokens. Immutable.

    Args:
        tokens: all of them; those that are no safe place as well, since they hide others.
    """

    __slots__ = ("_cuts", "_pattern")

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        found = [token for token in tokens if token.text and not token.is_normalized]
        self._cuts = frozenset(token.text for token in found if token.is_safe_cut)
        self._pattern = re.compile(_any_of(token.text for token in found)) if self._cuts else None

    def cut(self, text: str) -> list[str]:
        """Return the pieces of `text`, none of them empty; joined they are the text.

        Cost: one pass.
        """
        if self._pattern is None:
            return [text] if text else []
        pieces, start = [], 0
        for match in self._pattern.finditer(text):
            at = match.start()
            if at > start and match.group() in self._cuts:
                pieces.append(text[start:at])
                start = at
        if start < len(text):
            pieces.append(text[start:])
        return pieces


def _any_of(words: Iterable[str]) -> str:
    """Return an expression that matches the longest of `words`.

    A tree of their letters, because a plain list of a thousand words would be tried one by one at
    each place that looks like a beginning.
    """
    tree: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return _branch(tree)


def _branch(tree: dict[str, dict]) -> str:  # type: ignore[type-arg]
    path = ""
    while len(tree) == 1 and _END not in tree:
        (letter, tree), *_ = tree.items()
        path += re.escape(letter)
    ways = [re.escape(letter) + _branch(node) for letter, node in tree.items() if letter != _END]
    if not ways:
        return path
    return f"{path}(?:{'|'.join(ways)}){'?' if _END in tree else ''}"
