"""A llama GGUF of about 200 kB with random weights, for tests that need an engine, not sense.

Its vocabulary is byte-level BPE (256 bytes and a few merges) with SmolLM2's special tokens and
chat template, so tokenizer, template, server and engine all run as with the real model.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("e", "r"), ("a", "n"), ("Ġ", "a"),
    ("o", "n"), ("Ġ", "s"), ("e", "n"), ("in", "g"), ("an", "d"), ("l", "l"), ("o", "r"),
    ("Ġ", "w"), ("s", "t"), ("o", "u"), ("i", "s"), ("u", "s"), ("us", "er"),
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a tiny test model<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the model; `num_heads` must be a multiple of `num_kv_heads`."""

    num_layers: int = 2
    dim: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    ffn_dim: int = 96
    context_length: int = 1024
    tied_head: bool = True


def vocabulary() -> tuple[list[str], list[int]]:
    """Return the tokens and their GGUF types: special, bytes, merged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in MERGES)]
    return tokens, [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS))


def write_tiny_gguf(
    path: Path,
    shape: TinyShape | None = None,
    *,
    seed: int = 0,
    quantized: bool = False,
    architecture: str = "llama",
    pre: str = "smollm",
) -> Path:
    """Write the model; the same arguments give the same bytes.

    Args:
        path: where to.
        shape: sizes.
        seed: of the weights.
        quantized: matrices as Q8_0, as real files have them; else F32.
        architecture: another name makes a file that the engine must refuse.
        pre: name of the pre-tokenizer.
    """
    shape = shape or TinyShape()
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, shape, pre)
    rng = np.random.default_rng(seed)
    for name, tensor in _tensors(shape, rng).items():
        if quantized and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: gguf.GGUFWriter, shape: TinyShape, pre: str) -> None:
    tokens, types = vocabulary()
    writer.add_name("Tiny Random Llama")
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.dim)
    writer.add_feed_forward_length(shape.ffn_dim)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.dim // shape.num_heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(shape: TinyShape, rng: np.random.Generator) -> dict[str, np.ndarray]:
    head_dim = shape.dim // shape.num_heads
    kv_dim = shape.num_kv_heads * head_dim
    vocab_size = len(vocabulary()[0])

    def matrix(num_out: int, num_in: int, gain: float = 1.0) -> np.ndarray:
        return (gain * rng.standard_normal((num_out, num_in)) / num_in**0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(shape.dim)).astype(np.float32)

    tensors = {"token_embd.weight": matrix(vocab_size, shape.dim, gain=8.0)}
    for i in range(shape.num_layers):
        tensors |= {
            f"blk.{i}.attn_norm.weight": norm(),
            f"blk.{i}.attn_q.weight": matrix(shape.dim, shape.dim, gain=2.0),
            f"blk.{i}.attn_k.weight": matrix(kv_dim, shape.dim, gain=2.0),
            f"blk.{i}.attn_v.weight": matrix(kv_dim, shape.dim),
            f"blk.{i}.attn_output.weight": matrix(shape.dim, shape.dim),
            f"blk.{i}.ffn_norm.weight": norm(),
            f"blk.{i}.ffn_gate.weight": matrix(shape.ffn_dim, shape.dim),
            f"blk.{i}.ffn_up.weight": matrix(shape.ffn_dim, shape.dim),
            f"blk.{i}.ffn_down.weight": matrix(shape.dim, shape.ffn_dim),
        }
    tensors["output_norm.weight"] = norm()
    if not shape.tied_head:
        tensors["output.weight"] = matrix(vocab_size, shape.dim)
    return tensors
