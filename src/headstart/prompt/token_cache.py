"""Tokens of prompts, with nothing tokenised or hashed twice.

Theory of operation: a rendered prompt is cut into pieces (`prompt.text_cutter`) that are tokenised
by themselves. Three tables remember, the most specific first:

    prompt    key of a request's prompt       → its `TokenPrompt`       `PromptMemo`
    path      digest of a piece and of all    → the keys of the blocks  `TokenCache`
              pieces before it                  that end in it
    piece     digest of a piece               → its ids                 `TokenCache`

A prompt seen before is one look-up. A conversation that goes on walks along the path of its old
pieces, a hash and a look-up for each, and tokenises what is new; its blocks are hashed on from
where the path ends, as a rule in the middle of a block. A text that is seen again behind another
one (a tool's answer, a document) costs the hashes of its blocks.

The tables are keyed by 128-bit digests and hold ids and keys: no text stays in them.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from struct import pack
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.lru_table import LruTable, TableStatistics
from headstart.prompt.token_keys import TokenPrompt, block_keys
from headstart.types import PrefixKey

if TYPE_CHECKING:  # its library is large, and most gateways tokenise nothing
    from headstart.prompt.text_encoder import TextEncoder

DEFAULT_CACHE_BYTES: Final = 64 * 1024 * 1024

_KEY_BYTES: Final = 57  # a 16-byte object and the reference to it
_OPEN_ID_BYTES: Final = 36
_STEP_BYTES: Final = 400  # its three tables
_PLAIN: Final = b"\0"
_SPECIAL: Final = b"\1"


class _Step(msgspec.Struct, frozen=True):
    """A piece at its place behind others.

    Attributes:
        num_tokens: of the piece.
        keys: of the blocks that end in it, by block size.
        open_keys: the key before the block that is open at its end, by block size.
        open_ids: the ids in that block, by block size.
    """

    num_tokens: int
    keys: dict[int, list[PrefixKey]]
    open_keys: dict[int, PrefixKey]
    open_ids: dict[int, list[int]]


class _Form(msgspec.Struct, frozen=True):
    """What besides its text makes a prompt's keys; see `TokenCache.prompt`."""

    root: PrefixKey
    block_sizes: Sequence[int]
    adds_special: bool

    def seed(self) -> bytes:
        """Return what its paths start from."""
        sizes = pack(f"<{len(self.block_sizes)}I", *self.block_sizes)
        return self.root + sizes + (_SPECIAL if self.adds_special else _PLAIN)

    def step(self, before: _Step | None, ids: Sequence[int]) -> _Step:
        """Return the step of a piece behind `before`, or of a prompt's first."""
        keys: dict[int, list[PrefixKey]] = {}
        open_keys: dict[int, PrefixKey] = {}
        open_ids: dict[int, list[int]] = {}
        for size in self.block_sizes:
            key = self.root if before is None else before.open_keys[size]
            pending = [*(() if before is None else before.open_ids[size]), *ids]
            keys[size] = block_keys(pending, size, key)
            open_keys[size] = keys[size][-1] if keys[size] else key
            open_ids[size] = pending[len(pending) - len(pending) % size :]
        return _Step(len(ids), keys, open_keys, open_ids)


class TokenCache:
    """One vocabulary's pieces and paths. For one thread, whichever that is.

    Args:
        encoder: of the vocabulary.
        max_bytes: of both tables together.
    """

    __slots__ = ("_encoder", "_paths", "_pieces")

    def __init__(self, encoder: "TextEncoder", max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._encoder = encoder
        self._paths: LruTable[_Step] = LruTable(max_bytes // 2)
        self._pieces: LruTable[Sequence[int]] = LruTable(max_bytes // 2)

    def prompt(
        self,
        text: str,
        *,
        root: PrefixKey,
        block_sizes: Sequence[int],
        adds_special: bool = False,
    ) -> TokenPrompt:
        """Return a text's tokens, counted and as keys of its full blocks.

        Args:
            text: rendered.
            root: of its keys (`token_keys.block_root`).
            block_sizes: for each of these there are keys.
            adds_special: with what begins and ends a sequence around it.

        Cost: for what was seen, a hash and a look-up a piece; for the rest, tokenising.
        """
        pieces = self._encoder.cut(text)
        data = [piece.encode() for piece in pieces]
        form = _Form(root, block_sizes, adds_special)
        places = _places(form.seed(), data)
        steps = self._paths.leading(places)
        if len(steps) < len(pieces):
            num_known = len(steps)
            self._extend(steps, pieces[num_known:], data[num_known:], form)
            for place, step in zip(places[num_known:], steps[num_known:], strict=True):
                self._paths.put(place, step, _size_of(step))
        self._paths.use(places)
        if adds_special:
            around = [] if pieces else self._encoder.first_ids([])
            around = [*around, *self._encoder.last_ids]
            if around:
                steps.append(form.step(_last(steps), around))
        return TokenPrompt(
            sum([step.num_tokens for step in steps]),
            {
                size: list(chain.from_iterable([step.keys[size] for step in steps]))
                for size in block_sizes
            },
        )

    def clear(self) -> None:
        """Forget everything."""
        self._paths.clear()
        self._pieces.clear()

    def statistics(self) -> dict[str, TableStatistics]:
        """Return what each table holds and did, by its name."""
        return {"path": self._paths.statistics(), "piece": self._pieces.statistics()}

    def check_integrity(self) -> None:
        """Check the tables' accounts."""
        self._paths.check_integrity()
        self._pieces.check_integrity()

    def _extend(
        self, steps: list[_Step], pieces: list[str], data: list[bytes], form: _Form
    ) -> None:
        """Append the steps of pieces that have none."""
        for ids in self._ids(pieces, data):
            first = self._encoder.first_ids(ids) if form.adds_special and not steps else []
            steps.append(form.step(_last(steps), [*first, *ids]))

    def _ids(self, pieces: list[str], data: list[bytes]) -> list[Sequence[int]]:
        """Return the ids of each piece; those never seen are tokenised in one go."""
        digests = [xxhash.xxh3_128_digest(each) for each in data]
        found = [self._pieces.get(digest) for digest in digests]
        missing = {
            digest: piece
            for digest, piece, ids in zip(digests, pieces, found, strict=True)
            if ids is None
        }
        fresh: dict[bytes, Sequence[int]] = {}
        if missing:
            encoded = self._encoder.encode(list(missing.values()))
            for digest, ids in zip(missing, encoded, strict=True):
                fresh[digest] = array("I", ids)
                self._pieces.put(digest, fresh[digest], 4 * len(ids))
        return [
            fresh[digest] if ids is None else ids
            for digest, ids in zip(digests, found, strict=True)
        ]


class PromptMemo:
    """Tokens of whole prompts by the keys of their bytes; None for one that has no known tokens.

    Args:
        max_bytes: the least recently used prompts are forgotten.
    """

    __slots__ = ("_table",)

    def __init__(self, max_bytes: int) -> None:
        self._table: LruTable[tuple[TokenPrompt | None]] = LruTable(max_bytes)

    def get(self, key: bytes) -> tuple[TokenPrompt | None] | None:
        """Return the tokens, in a tuple, of a prompt that was put here; None of any other."""
        return self._table.get(key)

    def put(self, key: bytes, prompt: TokenPrompt | None) -> None:
        """Remember a prompt's tokens."""
        keys = prompt.keys_by_block_size.values() if prompt is not None else ()
        # The keys themselves are the paths', too, as long as those are remembered.
        self._table.put(key, (prompt,), _KEY_BYTES * sum(map(len, keys)))

    def clear(self) -> None:
        """Forget everything."""
        self._table.clear()

    def statistics(self) -> TableStatistics:
        """Return what it holds and did."""
        return self._table.statistics()


def memo_key(prompt: PromptKeys, tail: bytes, ending: bytes = b"") -> bytes | None:
    """Return a digest of everything in a prompt; None for one without a full block.

    Args:
        prompt: its keys.
        tail: the bytes behind the last block, see `tail_of`.
        ending: values of those of `PROMPT_FIELDS` that the keys' namespace does not have.

    Cost: 0.5 us.
    """
    if not prompt.keys:
        return None
    return xxhash.xxh3_128_digest(
        prompt.keys[-1] + pack("<QI", prompt.num_bytes, len(ending)) + ending + tail
    )


def tail_of(parts: Sequence[bytes | msgspec.Raw], prompt: PromptKeys) -> bytes:
    """Return the bytes of a prompt that are in none of its blocks, fewer than one has.

    Args:
        parts: what `prompt` was made of.
        prompt: its keys.
    """
    num_bytes = prompt.num_bytes - (prompt.ends[-1] if prompt.ends else 0)
    tail = b""
    for part in reversed(parts):
        missing = num_bytes - len(tail)
        if not missing:
            break
        tail = bytes(memoryview(part)[-missing:]) + tail
    return tail


def _places(seed: bytes, data: Iterable[bytes]) -> list[bytes]:
    """Return for each piece a digest of it and of all before it."""
    digest, at = xxhash.xxh3_128_digest, seed
    places = []
    for each in data:
        at = digest(at + each)
        places.append(at)
    return places


def _last(steps: list[_Step]) -> _Step | None:
    return steps[-1] if steps else None


def _size_of(step: _Step) -> int:
    num_keys = sum(map(len, step.keys.values()))
    num_open = sum(map(len, step.open_ids.values()))
    return _STEP_BYTES * len(step.keys) + _KEY_BYTES * num_keys + _OPEN_ID_BYTES * num_open
