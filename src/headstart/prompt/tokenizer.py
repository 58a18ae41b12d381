"""Text to token ids and back, for the vocabularies that model files carry.

Two ways in: a Hugging Face `tokenizer.json`, and the vocabulary inside a GGUF file. Two kinds of
vocabulary are understood, and a token of either is a run of bytes:

- byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): each byte is written as a printable character;
- SentencePiece BPE with byte fallback (Llama 2, Mistral): a space is "▁", a byte is "<0xE2>".

Text is therefore decoded by joining bytes, never by asking a library for the text of a list of
ids: that is exact for any cut, constant per token, and makes incremental decoding trivial.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from headstart.errors import ModelUnavailable

_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6  # GGUF: tokenizer.ggml.token_type

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ONE_DIGIT = r"\p{N}"
_ANY_DIGITS = r"\p{N}+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
_PUNCTUATION_TICK = r"[\p{P}\$\+<=>\^~\|`]+"
_THREE_DIGITS = r"[0-9][0-9][0-9]"

# Source: llama.cpp, src/llama-vocab.cpp, the expressions of each LLAMA_VOCAB_PRE_TYPE.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (_PUNCTUATION, _GPT2, _ANY_DIGITS, _THREE_DIGITS),
    "gpt-2": (_GPT2,),
    "gpt2": (_GPT2,),
    "phi-2": (_GPT2,),
    "mpt": (_GPT2,),
    "olmo": (_GPT2,),
    "jais": (_GPT2,),
    "falcon": (_PUNCTUATION_TICK, _GPT2, _THREE_DIGITS),
    "smollm": (_ONE_DIGIT, _GPT2),
    "starcoder": (_ONE_DIGIT, _GPT2),
    "refact": (_ONE_DIGIT, _GPT2),
    "command-r": (_ONE_DIGIT, _GPT2),
    "codeshell": (_ONE_DIGIT, _GPT2),
    "exaone": (_ONE_DIGIT, _GPT2),
    "minerva-7b": (_ONE_DIGIT, _GPT2),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "llama-bpe": (_LLAMA3,),
    "falcon3": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "dbrx": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "stablelm2": (_QWEN2,),
    "tekken": (_TEKKEN,),
}


@dataclass(frozen=True, slots=True)
class VocabularySpec:
    """A vocabulary as a GGUF file carries it.

    Attributes:
        model: `tokenizer.ggml.model`: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
        pre: `tokenizer.ggml.pre`: name of the rule that splits text before BPE; "" if absent.
        tokens: the text of each id, in the vocabulary's own writing of bytes.
        token_types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
        merges: "left right", by rank; byte-level BPE only.
        scores: of each token, higher merges first; SentencePiece only.
        add_space_prefix: put a space before the text; SentencePiece only.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    add_space_prefix: bool = True


class Tokenizer:
    """One model's vocabulary; does not know chat templates and never adds BOS or EOS.

    Immutable and safe to share between threads.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        token_bytes: Sequence[bytes],
        control_ids: frozenset[int],
        *,
        strips_first_space: bool = False,
    ) -> None:
        self._backend = backend
        self._token_bytes = token_bytes
        self._control_ids = control_ids
        self._strips_first_space = strips_first_space
        self.vocab_size: int = len(token_bytes)

    @classmethod
    def from_json(cls, data: bytes) -> "Tokenizer":
        """Build from the bytes of a Hugging Face `tokenizer.json`.

        Raises:
            ModelUnavailable: it is no tokenizer, or of a kind that is not bytes underneath.
        """
        try:
            backend = tokenizers.Tokenizer.from_buffer(data)
            description = json.loads(data)
        except Exception as exc:
            raise ModelUnavailable(f"tokenizer.json cannot be read: {exc}") from exc
        kinds = _decoder_kinds(description.get("decoder"))
        if "ByteLevel" in kinds:
            to_bytes: Callable[[str], bytes] = _byte_level_bytes
        elif "ByteFallback" in kinds or "Metaspace" in kinds:
            to_bytes = _sentencepiece_bytes
        else:
            raise ModelUnavailable(
                f"tokenizer.json has decoder {sorted(kinds)}, which is not supported; "
                "supported: ByteLevel, ByteFallback, Metaspace"
            )
        added = {token["id"]: token for token in description.get("added_tokens", [])}
        token_bytes = [b""] * backend.get_vocab_size(with_added_tokens=True)
        for text, token_id in backend.get_vocab(with_added_tokens=True).items():
            if token_id >= len(token_bytes):  # ids may have gaps
                token_bytes.extend([b""] * (token_id + 1 - len(token_bytes)))
            token_bytes[token_id] = text.encode() if token_id in added else to_bytes(text)
        control_ids = frozenset(i for i, token in added.items() if token.get("special"))
        return cls(backend, token_bytes, control_ids, strips_first_space="Strip" in kinds)

    @classmethod
    def from_vocabulary(cls, vocab: VocabularySpec) -> "Tokenizer":
        """Build from a GGUF file's vocabulary.

        Raises:
            ModelUnavailable: the vocabulary's model or pre-tokenizer is not known, or its parts
                do not fit together.
        """
        if vocab.model == "gpt2":
            make_backend, to_bytes = _byte_level_backend, _byte_level_bytes
        elif vocab.model == "llama":
            make_backend, to_bytes = _sentencepiece_backend, _sentencepiece_bytes
        else:
            raise ModelUnavailable(
                f"tokenizer.ggml.model is {vocab.model!r}, which is not supported; "
                "use a GGUF file whose vocabulary is 'gpt2' or 'llama'"
            )
        try:
            backend = make_backend(vocab)
        except ModelUnavailable:
            raise
        except Exception as exc:  # the library has no narrower class
            raise ModelUnavailable(
                f"the model's vocabulary cannot be used: {exc}; the file is damaged, fetch it again"
            ) from exc
        written = {_CONTROL, _USER_DEFINED}  # their text stands for itself
        token_bytes = [
            text.encode() if kind in written else to_bytes(text)
            for text, kind in zip(vocab.tokens, vocab.token_types, strict=True)
        ]
        control_ids = _ids_of_type(vocab, _CONTROL)
        backend.add_tokens(
            [
                AddedToken(vocab.tokens[i], special=i in control_ids, normalized=False)
                for i in sorted(control_ids | _ids_of_type(vocab, _USER_DEFINED))
                if vocab.tokens[i]
            ]
        )
        strips = vocab.model == "llama" and vocab.add_space_prefix
        return cls(backend, token_bytes, control_ids, strips_first_space=strips)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens written in it become their ids."""
        return _ids(self._backend, text)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens written in it are ordinary characters."""
        return _ids(self._plain_backend, text)

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `token_ids`; incomplete UTF-8 becomes U+FFFD.

        Args:
            token_ids: each in 0..vocab_size - 1.
            skip_special: leave control tokens (<|im_end|>, </s>) out, as chat output wants it.
        """
        parts = [self.token_bytes(i, skip_special=skip_special) for i in token_ids]
        return self.strip_first_space(b"".join(parts)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """Return the bytes that a token stands for; they need not be whole characters."""
        if skip_special and token_id in self._control_ids:
            return b""
        return self._token_bytes[token_id]

    def token_id(self, text: str) -> int | None:
        """Return the id of the token written `text` in the vocabulary, if there is one."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def strip_first_space(self, data: bytes) -> bytes:
        """Remove the space that encoding put before the text, where this vocabulary does so."""
        if self._strips_first_space and data.startswith(b" "):
            return data[1:]
        return data

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """A second copy: whether special tokens are seen is a setting of the whole object."""
        plain = tokenizers.Tokenizer.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        return plain


class IncrementalDecoder:
    """Text of a growing list of tokens, character by character; never emits half a character.

    Not thread-safe. Cost: constant per token.
    """

    __slots__ = ("_is_first", "_skip_special", "_tokenizer", "_utf8")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = True

    def feed(self, token_id: int) -> str:
        """Add a token and return the characters that it completes, perhaps none."""
        data = self._tokenizer.token_bytes(token_id, skip_special=self._skip_special)
        if self._is_first and data:
            data = self._tokenizer.strip_first_space(data)
            self._is_first = False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """End the text: a character that is still incomplete becomes U+FFFD."""
        return self._utf8.decode(b"", final=True)


def _ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    # A batch of one: only batches let go of the interpreter's lock, and a long text takes seconds.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _byte_level_backend(vocab: VocabularySpec) -> tokenizers.Tokenizer:
    expressions = _SPLITS.get(vocab.pre or "default")
    if expressions is None:
        raise ModelUnavailable(
            f"tokenizer.ggml.pre is {vocab.pre!r}, which is not known; "
            f"known: {', '.join(sorted(_SPLITS))}"
        )
    merges = [_split_merge(merge) for merge in vocab.merges]
    ids = {text: i for i, text in enumerate(vocab.tokens)}
    backend = tokenizers.Tokenizer(
        # These vocabularies have whole words that no sequence of merges reaches.
        models.BPE(ids, merges, ignore_merges=expressions in ((_LLAMA3,), (_TEKKEN,)))
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_backend(vocab: VocabularySpec) -> tokenizers.Tokenizer:
    ids = {text: i for i, text in enumerate(vocab.tokens)}
    unknown = next(
        (t for t, k in zip(vocab.tokens, vocab.token_types, strict=True) if k == 2), None
    )
    backend = tokenizers.Tokenizer(
        models.BPE(
            ids,
            _merges_from_scores(vocab, ids),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Prepend("▁")] if vocab.add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    return backend


def _merges_from_scores(vocab: VocabularySpec, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Rank every way to join two tokens into a third by the third's score.

    SentencePiece joins the adjacent pair whose result scores highest; a BPE that ranks the same
    pairs in the same order makes the same joins. Ties go to the lower id, as in the file's order.
    """
    ranked: list[tuple[float, int, str, str]] = []
    for text, token_id in ids.items():
        if vocab.token_types[token_id] != _NORMAL:
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-vocab.scores[token_id], token_id, left, right))
    ranked.sort(key=lambda merge: (merge[0], merge[1], ids[merge[2]], ids[merge[3]]))
    return [(left, right) for _, _, left, right in ranked]


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _ids_of_type(vocab: VocabularySpec, kind: int) -> frozenset[int]:
    return frozenset(i for i, k in enumerate(vocab.token_types) if k == kind)


def _decoder_kinds(decoder: dict[str, Any] | None) -> frozenset[str]:
    if decoder is None:
        return frozenset()
    nested = [_decoder_kinds(part) for part in decoder.get("decoders", [])]
    return frozenset({decoder["type"]}).union(*nested)


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's writing of bytes: printable Latin-1 as itself, the rest from U+0100 on.

    Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update((chr(0x100 + n), byte) for n, byte in enumerate(others))
    return alphabet


_BYTE_OF_CHARACTER = _byte_alphabet()


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in text])
    except KeyError:  # a token that was added as it stands, outside the alphabet
        return text.encode()


def _sentencepiece_bytes(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()
