"""A llama forward pass as plainly as it can be written: the oracle for the backends."""

import numpy as np

from headstart.engines.embedded.gguf import GgufModel


def reference_logits(model: GgufModel, token_ids: list[int]) -> np.ndarray:
    """Logits after every token of one sequence. [T, V] float64. No cache, no batching."""
    meta = model.metadata
    num_heads, num_kv = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    eps, base = meta["llama.attention.layer_norm_rms_epsilon"], meta["llama.rope.freq_base"]
    weights = {name: model.tensor(name).astype(np.float64) for name in model.tensors}
    x = weights["token_embd.weight"][token_ids]
    for layer in range(meta["llama.block_count"]):

        def weight(name, layer=layer):
            return weights[f"blk.{layer}.{name}.weight"]

        h = rms_norm(x, weight("attn_norm"), eps)
        q = rope(split(h @ weight("attn_q").T, num_heads), base)
        k = rope(split(h @ weight("attn_k").T, num_kv), base)
        v = split(h @ weight("attn_v").T, num_kv)
        heads = [
            attend(q[i], k[i * num_kv // num_heads], v[i * num_kv // num_heads])
            for i in range(num_heads)
        ]
        x = x + np.concatenate(heads, axis=1) @ weight("attn_output").T
        h = rms_norm(x, weight("ffn_norm"), eps)
        gate = h @ weight("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight("ffn_up").T)) @ weight("ffn_down").T
    head = weights.get("output.weight", weights["token_embd.weight"])
    return rms_norm(x, weights["output_norm.weight"], eps) @ head.T


def rms_norm(x, gain, eps):
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * gain


def split(x, num_heads):
    """[T, H * D] to [H, T, D]."""
    return x.reshape(len(x), num_heads, -1).transpose(1, 0, 2)


def rope(x, base):
    """Rotate the pairs (2i, 2i + 1) of [H, T, D] by position / base^(2i/D)."""
    _, num_positions, dim = x.shape
    angle = np.arange(num_positions)[:, None] / base ** (np.arange(0, dim, 2) / dim)
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = np.empty_like(x)
    rotated[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    rotated[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return rotated


def attend(q, k, v):
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores[np.triu_indices(len(q), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v
