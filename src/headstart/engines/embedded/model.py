"""What a llama-architecture model consists of: its sizes, and its weights as float32 arrays.

The weights are arranged once for the arithmetic that follows; the function they compute is the
same:

- q, k, v are one matrix, gate and up are one: fewer, larger products;
- each norm's gain is multiplied into the matrix that reads its output;
- 1/sqrt(head dimension) is multiplied into q;
- matrices are stored [in, out], so that `x @ w` reads both operands as they lie.

Rotary embedding: GGUF files of this architecture have the rows of q and k permuted so that the
two numbers that rotate together are neighbours (2i, 2i + 1), that is: a complex number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headstart.engines.embedded.gguf import FloatArray, GgufModel
from headstart.errors import ModelUnavailable

ComplexArray = npt.NDArray[np.complex64]

_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
_GLOBAL_TENSORS = ("token_embd", "output_norm", "output", "rope_freqs")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a llama-architecture model.

    Attributes:
        num_layers, dim, ffn_dim, vocab_size: as the names say.
        num_heads, num_kv_heads: query heads; key-value heads, a divisor of it.
        head_dim: numbers per head.
        rope_dim: leading numbers of each head that are rotated; even.
        rope_base: base of the rotation's frequencies.
        rope_scale: positions are divided by it (linear scaling).
        norm_eps: added to the mean square in RMSNorm.
        context_length: positions that the model was trained for.
    """

    num_layers: int
    dim: int
    ffn_dim: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_dim: int
    rope_base: float
    rope_scale: float
    norm_eps: float
    context_length: int

    @property
    def group_size(self) -> int:
        """Query heads per key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of float32 KV per token."""
        return 2 * 4 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer.

    Attributes:
        qkv: [dim, (H + 2 H_kv) * D]; columns q, k, v, head by head.
        attn_out: [H * D, dim].
        gate_up: [dim, 2 * ffn_dim]; columns gate, up.
        down: [ffn_dim, dim].
    """

    qkv: FloatArray
    attn_out: FloatArray
    gate_up: FloatArray
    down: FloatArray


def read_config(model: GgufModel) -> ModelConfig:
    """Read and check a model's sizes.

    Raises:
        ModelUnavailable: it is of another architecture, or has parts that this engine lacks.
    """
    architecture = model.require("general.architecture", str)
    if architecture != "llama":
        raise ModelUnavailable(
            f"{model.path}: architecture {architecture!r} is not supported; "
            "the embedded engine runs 'llama' (SmolLM2, Llama 2 and 3, TinyLlama, Mistral 7B)"
        )
    _check_tensors(model)
    num_heads = model.require("llama.attention.head_count", int)
    dim = model.require("llama.embedding_length", int)
    head_dim = model.metadata.get("llama.attention.key_length", dim // num_heads)
    config = ModelConfig(
        num_layers=model.require("llama.block_count", int),
        dim=dim,
        ffn_dim=model.require("llama.feed_forward_length", int),
        vocab_size=len(model.require("tokenizer.ggml.tokens", list)),
        num_heads=num_heads,
        num_kv_heads=model.metadata.get("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rope_dim=model.metadata.get("llama.rope.dimension_count", head_dim),
        rope_base=float(model.metadata.get("llama.rope.freq_base", 10000.0)),
        rope_scale=_linear_scale(model),
        norm_eps=model.require("llama.attention.layer_norm_rms_epsilon", float),
        context_length=model.require("llama.context_length", int),
    )
    if config.num_heads % config.num_kv_heads or config.rope_dim % 2:
        raise ModelUnavailable(
            f"{model.path}: {config.num_heads} heads, {config.num_kv_heads} KV heads and rotary "
            f"dimension {config.rope_dim} do not fit together; the file is damaged"
        )
    return config


def read_layers(model: GgufModel, config: ModelConfig) -> Iterator[LayerWeights]:
    """Read one layer after the other, so that no more than one is held twice.

    Raises:
        ModelUnavailable: a tensor is missing, cut short, or of the wrong shape.
    """
    q_dim, kv_dim = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for i in range(config.num_layers):

        def read(name: str, *shape: int, layer: int = i) -> FloatArray:
            return _read(model, f"blk.{layer}.{name}.weight", shape)

        attn_norm, ffn_norm = read("attn_norm", config.dim), read("ffn_norm", config.dim)
        qkv = np.empty((config.dim, q_dim + 2 * kv_dim), np.float32)
        qkv[:, :q_dim] = read("attn_q", q_dim, config.dim).T
        qkv[:, :q_dim] *= config.head_dim**-0.5
        qkv[:, q_dim : q_dim + kv_dim] = read("attn_k", kv_dim, config.dim).T
        qkv[:, q_dim + kv_dim :] = read("attn_v", kv_dim, config.dim).T
        qkv *= attn_norm[:, None]
        gate_up = np.empty((config.dim, 2 * config.ffn_dim), np.float32)
        gate_up[:, : config.ffn_dim] = read("ffn_gate", config.ffn_dim, config.dim).T
        gate_up[:, config.ffn_dim :] = read("ffn_up", config.ffn_dim, config.dim).T
        gate_up *= ffn_norm[:, None]
        yield LayerWeights(
            qkv=qkv,
            attn_out=np.ascontiguousarray(read("attn_output", config.dim, q_dim).T),
            gate_up=gate_up,
            down=np.ascontiguousarray(read("ffn_down", config.dim, config.ffn_dim).T),
        )


def read_embedding(model: GgufModel, config: ModelConfig) -> FloatArray:
    """Read the embedding of each token. [V, dim]."""
    return _read(model, "token_embd.weight", (config.vocab_size, config.dim))


def read_head(model: GgufModel, config: ModelConfig) -> FloatArray | None:
    """Read the output matrix [V, dim]; None if the embedding serves as one."""
    if "output.weight" not in model.tensors:
        return None
    return _read(model, "output.weight", (config.vocab_size, config.dim))


def read_output_norm(model: GgufModel, config: ModelConfig) -> FloatArray:
    """Read the gain of the last norm. [dim]."""
    return _read(model, "output_norm.weight", (config.dim,))


def read_rotations(model: GgufModel, config: ModelConfig, num_positions: int) -> ComplexArray:
    """Return the unit complex numbers that rotate q and k. [num_positions, D/2] complex64.

    Numbers beyond `rope_dim` are 1: they leave their part of the head as it is.
    """
    exponents = np.arange(0, config.rope_dim, 2, dtype=np.float64) / config.rope_dim
    frequencies = config.rope_base**-exponents / config.rope_scale
    if "rope_freqs.weight" in model.tensors:  # Llama 3.1 stretches the slow ones
        frequencies /= _read(model, "rope_freqs.weight", (config.rope_dim // 2,))
    angles = np.zeros((num_positions, config.head_dim // 2))
    angles[:, : config.rope_dim // 2] = np.arange(num_positions)[:, None] * frequencies
    rotations: ComplexArray = np.exp(1j * angles).astype(np.complex64)
    return rotations


def _read(model: GgufModel, name: str, shape: tuple[int, ...]) -> FloatArray:
    info = model.tensors.get(name)
    if info is not None and info.shape != shape:
        raise ModelUnavailable(
            f"{model.path}: tensor {name} is {info.shape}, the metadata says {shape}; "
            "the file is damaged"
        )
    return model.tensor(name)


def _check_tensors(model: GgufModel) -> None:
    """Refuse a model with weights that would be ignored (biases, experts, adapters)."""
    for name in model.tensors:
        part = name.removesuffix(".weight")
        if part.startswith("blk."):
            known = part.split(".", 2)[2] in _LAYER_TENSORS
        else:
            known = part in _GLOBAL_TENSORS
        if not known or part == name:
            raise ModelUnavailable(
                f"{model.path}: tensor {name} is no part of a plain llama model; "
                "mixtures of experts and biases are not supported"
            )


def _linear_scale(model: GgufModel) -> float:
    scaling = model.metadata.get("llama.rope.scaling.type", "none")
    if scaling == "none":
        return 1.0
    if scaling == "linear":
        return float(model.require("llama.rope.scaling.factor", float))
    raise ModelUnavailable(
        f"{model.path}: rotary scaling {scaling!r} is not supported; 'none' and 'linear' are"
    )
