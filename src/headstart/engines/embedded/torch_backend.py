"""The model in torch, bfloat16: the optional backend; needs the extra `torch`.

The same pass as `numpy_backend`, over the same attention plan. Weights, keys and values are
bfloat16; the residual stream, norms, rotary embedding, scores and their merging are float32, so
that what bfloat16 loses is not amplified from layer to layer.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as functional

from headstart.engines.embedded.attention_plan import (
    MIN_RUN_TOKENS,
    AttentionPlan,
    Segment,
    plan_attention,
)
from headstart.engines.embedded.backend import SequenceStep
from headstart.engines.embedded.gguf import FloatArray, GgufModel
from headstart.engines.embedded.model import (
    LayerWeights,
    ModelConfig,
    read_config,
    read_embedding,
    read_head,
    read_layers,
    read_output_norm,
    read_rotations,
)

_log = logging.getLogger(__name__)
Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """`LayerWeights` as bfloat16, [out, in] as torch wants them."""

    qkv: Tensor
    attn_out: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """What every layer needs to know of a step; see `numpy_backend._StepAttention`."""

    plan: AttentionPlan
    slots: Tensor
    rotations: Tensor
    leaf_rows: Tensor
    leaf_blocks: Tensor
    leaf_mask: Tensor


class TorchBackend:
    """Weights and KV in bfloat16. Not thread-safe.

    Args:
        model: a llama-architecture file; its weights are read here, one copy is kept.
        num_blocks: size of the KV pool.
        block_size: tokens per block.
        num_threads: threads that compute, >= 1; None: torch decides.

    Raises:
        ModelUnavailable: the file cannot be used.
    """

    def __init__(
        self, model: GgufModel, num_blocks: int, block_size: int, num_threads: int | None = None
    ) -> None:
        self.config: ModelConfig = read_config(model)
        if "AVX512" not in torch.backends.cpu.get_cpu_capability():
            _log.warning("this CPU has no bfloat16 instructions; the numpy backend is faster here")
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        config = self.config
        self._block_size = block_size
        self._layers = [_to_torch(layer) for layer in read_layers(model, config)]
        self._embedding = _bfloat16(read_embedding(model, config))
        head = read_head(model, config)
        self._head = self._embedding if head is None else _bfloat16(head)
        self._output_norm = torch.from_numpy(read_output_norm(model, config))
        num_slots = num_blocks * block_size
        self._rotations = torch.from_numpy(
            read_rotations(model, config, min(config.context_length, num_slots))
        )
        shape = (config.num_layers, config.num_kv_heads, num_slots, config.head_dim)
        self._keys = torch.zeros(shape, dtype=torch.bfloat16)
        self._values = torch.zeros(shape, dtype=torch.bfloat16)

    def forward(self, batch: Sequence[SequenceStep]) -> FloatArray:
        """Compute one step; see `Backend.forward`."""
        with torch.inference_mode():
            return self._forward(batch)

    def _forward(self, batch: Sequence[SequenceStep]) -> FloatArray:
        plan = plan_attention(batch, self._block_size)
        steps = [batch[i] for i in plan.order]
        token_ids = torch.tensor([token for step in steps for token in step.token_ids])
        prepared = self._prepare(plan, steps)
        x = self._embedding[token_ids].float()
        for layer, weights in enumerate(self._layers):
            x += self._attend(self._normed(x), layer, weights, prepared)
            gate, up = functional.linear(self._normed(x), weights.gate_up).chunk(2, dim=1)
            x += functional.linear(functional.silu(gate) * up, weights.down)
        return self._logits(x, batch, plan)

    def _prepare(self, plan: AttentionPlan, steps: Sequence[SequenceStep]) -> _Step:
        size = self._block_size
        places = [
            (position, step.block_ids[position // size] * size + position % size)
            for step in steps
            for position in range(step.start, step.start + len(step.token_ids))
        ]
        positions, slots = torch.tensor(places).T
        width = max((len(leaf.blocks) for leaf in plan.rows.leaves), default=1)
        blocks = [
            leaf.blocks + leaf.blocks[-1:] * (width - len(leaf.blocks)) for leaf in plan.rows.leaves
        ]
        num_tokens = torch.tensor([leaf.num_tokens for leaf in plan.rows.leaves])
        hidden = torch.arange(width * size) >= num_tokens[:, None, None]
        return _Step(
            plan=plan,
            slots=slots,
            rotations=self._rotations[positions, None],
            leaf_rows=torch.tensor([leaf.row for leaf in plan.rows.leaves]),
            leaf_blocks=torch.tensor(blocks),
            leaf_mask=torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")),
        )

    def _attend(self, x: Tensor, layer: int, weights: _Layer, step: _Step) -> Tensor:
        config, num_rows = self.config, len(x)
        num_kv, dim = config.num_kv_heads, config.head_dim
        heads = functional.linear(x, weights.qkv).view(num_rows, -1, dim)
        rotated = torch.view_as_complex(heads[:, :-num_kv].float().unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(rotated * step.rotations).flatten(-2).bfloat16()
        queries, new_keys = rotated.split([config.num_heads, num_kv], dim=1)
        new_keys = new_keys.transpose(0, 1)
        new_values = heads[:, -num_kv:].transpose(0, 1)
        keys, values = self._keys[layer], self._values[layer]
        keys[:, step.slots] = new_keys
        values[:, step.slots] = new_values

        queries = queries.reshape(num_rows, num_kv, -1, dim).transpose(0, 1).contiguous()
        result = _Accumulator(queries)
        for causal in step.plan.rows.causal:
            first, end = causal.first_row, causal.end_row
            result.begin_causal(new_keys[:, first:end], new_values[:, first:end], first, end)
        if len(step.leaf_rows):
            result.begin_leaves(step, keys, values, self._block_size)
        for segment in step.plan.rows.segments:
            result.add_segment(segment, keys, values)
        merged = result.result().transpose(0, 1).reshape(num_rows, -1)
        return functional.linear(merged.bfloat16(), weights.attn_out)

    def _normed(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + self.config.norm_eps)
        return (x * scale).bfloat16()

    def _logits(self, x: Tensor, batch: Sequence[SequenceStep], plan: AttentionPlan) -> FloatArray:
        last_row = dict(zip(plan.order, plan.row_starts[1:], strict=True))
        rows = [last_row[i] - 1 for i, step in enumerate(batch) if step.needs_logits]
        normed = self._normed(x[rows]).float() * self._output_norm
        logits: FloatArray = functional.linear(normed.bfloat16(), self._head).float().numpy()
        return logits


class _Accumulator:
    """Partial results merged by log-sum-exp; see `numpy_attention.Accumulator`.

    Args:
        queries: [H, T, G, D] bfloat16 contiguous, scaled.
    """

    def __init__(self, queries: Tensor) -> None:
        self._queries = queries
        self._output = torch.empty(queries.shape)
        self._lse = torch.empty((*queries.shape[:3], 1))

    def begin_causal(self, keys: Tensor, values: Tensor, first: int, end: int) -> None:
        queries = self._queries[:, first:end]
        scores = _scores(queries, [keys]).view(*queries.shape[:3], -1)
        num_rows = end - first
        above = torch.ones(num_rows, num_rows, dtype=torch.bool).triu(1)
        scores.masked_fill_(above[:, None], float("-inf"))
        output, lse = _weigh(scores.flatten(1, 2), [values], queries.shape)
        self._output[:, first:end], self._lse[:, first:end] = output, lse

    def begin_leaves(self, step: _Step, keys: Tensor, values: Tensor, block_size: int) -> None:
        num_heads, _, head_dim = keys.shape
        shape = (num_heads, len(step.leaf_rows), -1, head_dim)
        by_block = (num_heads, -1, block_size, head_dim)
        queries = self._queries[:, step.leaf_rows]
        gathered = keys.view(by_block)[:, step.leaf_blocks].reshape(shape)
        scores = (queries @ gathered.transpose(2, 3)).float() + step.leaf_mask
        parts = [values.view(by_block)[:, step.leaf_blocks].reshape(shape)]
        output, lse = _weigh(scores, parts, queries.shape)
        self._output[:, step.leaf_rows], self._lse[:, step.leaf_rows] = output, lse

    def add_segment(self, segment: Segment, keys: Tensor, values: Tensor) -> None:
        a, b = segment.first_row, segment.end_row
        queries = self._queries[:, a:b]
        scores = _scores(queries, _parts(keys, segment))
        output, lse = _weigh(scores, _parts(values, segment), queries.shape)
        old = self._lse[:, a:b]
        new = torch.logaddexp(old, lse)
        self._output[:, a:b] = self._output[:, a:b] * (old - new).exp() + output * (lse - new).exp()
        self._lse[:, a:b] = new

    def result(self) -> Tensor:
        return self._output


def _parts(pool: Tensor, segment: Segment) -> list[Tensor]:
    parts = [pool[:, a:b] for a, b in segment.ranges if b - a >= MIN_RUN_TOKENS]
    short = [pool[:, a:b] for a, b in segment.ranges if b - a < MIN_RUN_TOKENS]
    return [*parts, torch.cat(short, dim=1)] if short else parts


def _scores(queries: Tensor, parts: Sequence[Tensor]) -> Tensor:
    flat = queries.flatten(1, 2)
    products = [flat @ part.transpose(1, 2) for part in parts]
    return (products[0] if len(products) == 1 else torch.cat(products, dim=2)).float()


def _weigh(
    scores: Tensor, parts: Sequence[Tensor], shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Turn scores into normalised output and log-sum-exp, of rows of `shape`."""
    lse = scores.logsumexp(dim=-1, keepdim=True)
    weights = (scores - lse).exp_().bfloat16()
    sizes = [part.shape[-2] for part in parts]
    pieces = weights.split(sizes, dim=-1)
    output = sum((w @ part for w, part in zip(pieces, parts, strict=True)), start=torch.zeros(()))
    return output.view(shape).float(), lse.view(*shape[:3], 1)


def _to_torch(layer: LayerWeights) -> _Layer:
    names: tuple[str, ...] = ("qkv", "attn_out", "gate_up", "down")
    return _Layer(**{name: _bfloat16(getattr(layer, name)).T.contiguous() for name in names})


def _bfloat16(array: FloatArray) -> Tensor:
    return torch.from_numpy(array).bfloat16()
