"""Read GGUF model files: header and metadata at once, tensors on demand, as float32.

The `gguf` package turns each metadata value into arrays of views (3.5 s for a vocabulary of
49,152); this reader walks the same bytes once with `struct` (0.1 s) and leaves to the package
what it is good at, the dequantisation of every tensor type.

Layout (GGUF specification, version 3, little-endian): magic, version, number of tensors, number
of metadata pairs, the pairs, one description per tensor, padding to `general.alignment`, data.
Version 2 differs only in what it allows; version 1 had 32-bit counts and is refused.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headstart.errors import ModelUnavailable
from headstart.prompt.tokenizer import Tokenizer, VocabularySpec

FloatArray = npt.NDArray[np.float32]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 8
_END_TOKEN_KEYS: Final = ("eos", "eot", "eom")
_END_TOKEN_TEXTS: Final = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")

_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    kind: struct.Struct(f"<{code}")
    for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    Attributes:
        name: GGUF's name, such as "blk.0.attn_q.weight".
        shape: slowest dimension first, as numpy has it.
        kind: GGML type number.
        offset: bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufModel:
    """An opened model file: what it says of itself, and its tensors when asked.

    Holds no file handle and no weights.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the model's chat template, if the file has one."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def bos_token(self) -> str | None:
        """Text of the token that begins a sequence."""
        return self._token_text("bos")

    @property
    def eos_token(self) -> str | None:
        """Text of the token that ends a sequence."""
        return self._token_text("eos")

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a sequence."""
        return self._token_id("bos")

    @property
    def add_bos_token(self) -> bool:
        """Whether the model expects BOS before a prompt that no chat template made."""
        kind = self.metadata.get("tokenizer.ggml.model")
        return bool(self.metadata.get("tokenizer.ggml.add_bos_token", kind == "llama"))

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends the model's turn: EOS, end of turn, end of message."""
        named = {self._token_id(key) for key in _END_TOKEN_KEYS}
        tokens = self.metadata.get("tokenizer.ggml.tokens", [])
        types = self.metadata.get("tokenizer.ggml.token_type", [])
        control = {t: i for i, (t, k) in enumerate(zip(tokens, types, strict=False)) if k == 3}
        named |= {control.get(text) for text in _END_TOKEN_TEXTS}
        return frozenset(i for i in named if i is not None)

    def require(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a metadata value.

        Raises:
            ModelUnavailable: it is missing or of another type.
        """
        value = self.metadata.get(key)
        if not isinstance(value, kind):
            found = "missing" if value is None else f"a {type(value).__name__}"
            raise ModelUnavailable(f"{self.path}: metadata {key} is {found}; get the file again")
        return value

    def tensor(self, name: str) -> FloatArray:
        """Read and dequantise one tensor.

        Returns:
            A fresh array in the shape that `tensors[name]` says.

        Raises:
            ModelUnavailable: no such tensor, an unknown type, or the file ends too early.
        """
        import gguf  # 70 ms; only needed where weights are read

        info = self.tensors.get(name)
        if info is None:
            raise ModelUnavailable(f"{self.path}: has no tensor {name}; it is not a llama model")
        try:
            kind = gguf.GGMLQuantizationType(info.kind)
            byte_shape = gguf.quant_shape_to_byte_shape(info.shape, kind)
        except ValueError as exc:
            raise ModelUnavailable(f"{self.path}: tensor {name}: {exc}") from exc
        num_bytes = int(np.prod(byte_shape, dtype=np.int64))
        try:
            raw = np.fromfile(self.path, np.uint8, num_bytes, offset=info.offset)
        except (OSError, OverflowError) as exc:  # an offset that no file has
            raise ModelUnavailable(f"{self.path}: cannot be read: {exc}") from exc
        if raw.size != num_bytes:
            raise ModelUnavailable(
                f"{self.path}: tensor {name} needs {num_bytes} bytes at {info.offset}, "
                f"{raw.size} are there; the file is cut short, fetch it again"
            )
        return _dequantised(self.path, info, raw.reshape(byte_shape))

    def _token_id(self, key: str) -> int | None:
        value = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        return value if isinstance(value, int) else None

    def _token_text(self, key: str) -> str | None:
        token_id = self._token_id(key)
        tokens = self.metadata.get("tokenizer.ggml.tokens", [])
        return tokens[token_id] if token_id is not None and token_id < len(tokens) else None


def load_gguf(path: Path) -> GgufModel:
    """Read a file's header and metadata, not its weights (0.1 s for 49,152 tokens).

    Raises:
        ModelUnavailable: there is no such file, it is no GGUF, or it ends inside its header.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _parse(path, _Reader(data))
    except OSError as exc:
        raise ModelUnavailable(
            f"{path}: {exc.strerror}; give the path of a .gguf file or run `headstart model fetch`"
        ) from exc
    except (_Damaged, ValueError) as exc:  # ValueError: an empty file cannot be mapped
        raise ModelUnavailable(f"{path}: {exc}; the file is damaged, fetch it again") from exc


def load_tokenizer(path: Path) -> Tokenizer:
    """Build the tokenizer of a model file without reading its weights.

    Raises:
        ModelUnavailable: see `load_gguf`; or the vocabulary is of an unknown kind.
    """
    return build_tokenizer(load_gguf(path))


def load_chat_template(path: Path) -> str | None:
    """Return the chat template of a model file without reading its weights."""
    return load_gguf(path).chat_template


def build_tokenizer(model: GgufModel) -> Tokenizer:
    """Build the tokenizer that a model file describes."""
    tokens = model.require("tokenizer.ggml.tokens", list)
    return Tokenizer.from_vocabulary(
        VocabularySpec(
            model=model.require("tokenizer.ggml.model", str),
            pre=model.metadata.get("tokenizer.ggml.pre", ""),
            tokens=tokens,
            token_types=model.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens),
            merges=model.metadata.get("tokenizer.ggml.merges", []),
            scores=model.metadata.get("tokenizer.ggml.scores", []),
            add_space_prefix=bool(model.metadata.get("tokenizer.ggml.add_space_prefix", True)),
        )
    )


class _Damaged(Exception):
    """The header points outside the file."""


class _Reader:
    """A position in the file's bytes; knows the primitive types, not what they mean."""

    __slots__ = ("_data", "position")

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def scalar(self, form: struct.Struct) -> Any:
        end = self.position + form.size
        if end > len(self._data):
            raise _Damaged(f"ends inside its header, at byte {len(self._data)}")
        (value,) = form.unpack_from(self._data, self.position)
        self.position = end
        return value

    def raw(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > len(self._data):
            raise _Damaged(f"ends inside its header, at byte {len(self._data)}")
        value = self._data[self.position : end]
        self.position = end
        return value

    def string(self) -> str:
        return self.raw(self.scalar(_U64)).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        form = _SCALARS.get(kind)
        if form is None:
            raise _Damaged(f"has a metadata value of unknown type {kind}")
        return self.scalar(form)

    def _array(self) -> list[Any]:
        kind, length = self.scalar(_U32), self.scalar(_U64)
        form = _SCALARS.get(kind)
        if form is None:
            return [self.value(kind) for _ in range(length)]
        return [value for (value,) in form.iter_unpack(self.raw(length * form.size))]


def _parse(path: Path, reader: _Reader) -> GgufModel:
    if reader.raw(4) != _MAGIC:
        raise ModelUnavailable(f"{path}: is not a GGUF file; give the path of a .gguf file")
    version = reader.scalar(_U32)
    if version not in _VERSIONS:
        raise ModelUnavailable(f"{path}: GGUF version {version}; versions 2 and 3 can be read")
    num_tensors, num_pairs = reader.scalar(_U64), reader.scalar(_U64)
    metadata = {}
    for _ in range(num_pairs):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar(_U32))
    described = [_read_tensor_info(reader) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    start = -(-reader.position // alignment) * alignment
    tensors = {t.name: replace(t, offset=start + t.offset) for t in described}
    return GgufModel(path, metadata, tensors)


def _read_tensor_info(reader: _Reader) -> TensorInfo:
    name, num_dimensions = reader.string(), reader.scalar(_U32)
    if num_dimensions > _MAX_DIMENSIONS:
        raise _Damaged(f"describes tensor {name[:64]!r} with {num_dimensions} dimensions")
    fastest_first = [reader.scalar(_U64) for _ in range(num_dimensions)]
    kind, offset = reader.scalar(_U32), reader.scalar(_U64)
    return TensorInfo(name, tuple(reversed(fastest_first)), kind, offset)


def _dequantised(path: Path, info: TensorInfo, raw: npt.NDArray[np.uint8]) -> FloatArray:
    import gguf

    try:
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(info.kind))
    except NotImplementedError as exc:
        raise ModelUnavailable(f"{path}: tensor {info.name}: {exc}") from exc
    return np.ascontiguousarray(values.reshape(info.shape), dtype=np.float32)
