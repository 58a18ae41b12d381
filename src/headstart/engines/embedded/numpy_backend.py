"""The model in numpy, float32: the default backend; needs nothing but numpy's own BLAS.

A step is one pass over all new tokens of a batch; attention follows the plan of `attention_plan`.
Keys and values are kept as [layer, head, slot, D], so a run of neighbouring slots is a view that
BLAS reads as it lies. Many rows (prefill) are cut into tiles, which threads take through a layer
side by side; few rows (decode) are one tile, and threads share the large weight matrices, because
then the time goes into reading these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from headstart.engines.embedded.attention_plan import (
    AttentionPlan,
    RowAttention,
    plan_attention,
)
from headstart.engines.embedded.backend import SequenceStep
from headstart.engines.embedded.gguf import FloatArray, GgufModel
from headstart.engines.embedded.model import (
    ComplexArray,
    LayerWeights,
    ModelConfig,
    read_config,
    read_embedding,
    read_head,
    read_layers,
    read_output_norm,
    read_rotations,
)
from headstart.engines.embedded.numpy_attention import (
    Accumulator,
    IntArray,
    LeafArrays,
    leaf_arrays,
)
from headstart.engines.embedded.workers import Workers

_TILE_ROWS: Final = 128
"""Rows that one thread computes at a time: enough for BLAS to be quick, few enough to share out."""


class NumpyBackend:
    """Weights, KV and arithmetic in float32. Not thread-safe.

    Args:
        model: a llama-architecture file; its weights are read here, one copy is kept.
        num_blocks: size of the KV pool; its memory is touched as it is first used.
        block_size: tokens per block.
        num_threads: threads that compute, >= 1; None: the physical cores.

    Raises:
        ModelUnavailable: the file cannot be used.
    """

    def __init__(
        self, model: GgufModel, num_blocks: int, block_size: int, num_threads: int | None = None
    ) -> None:
        self.config: ModelConfig = read_config(model)
        config = self.config
        self._block_size = block_size
        self._workers, self._alone = Workers(num_threads), Workers(1)
        self._layers: list[LayerWeights] = list(read_layers(model, config))
        self._embedding = read_embedding(model, config)
        head = read_head(model, config)
        self._head = self._embedding if head is None else head
        self._output_norm = read_output_norm(model, config)
        num_slots = num_blocks * block_size
        self._rotations = read_rotations(model, config, min(config.context_length, num_slots))
        shape = (config.num_layers, config.num_kv_heads, num_slots, config.head_dim)
        self._keys = np.zeros(shape, np.float32)
        self._values = np.zeros(shape, np.float32)

    def forward(self, batch: Sequence[SequenceStep]) -> FloatArray:
        """Compute one step; see `Backend.forward`."""
        plan = plan_attention(batch, self._block_size)
        steps = [batch[i] for i in plan.order]
        token_ids = np.concatenate([np.asarray(step.token_ids, np.intp) for step in steps])
        x = self._embedding[token_ids]
        tiles = self._tiles(plan, steps, x)
        config = self.config
        new = np.empty((2, 2, config.num_kv_heads, len(x), config.head_dim), np.float32)
        team = self._workers if len(tiles) == 1 else self._alone
        self._workers.run([partial(self._project, tile, 0, new[0], team) for tile in tiles])
        for layer in range(config.num_layers):
            self._workers.run([partial(self._layer, tile, layer, new, team) for tile in tiles])
        return self._logits(x, batch, plan)

    def _tiles(
        self, plan: AttentionPlan, steps: Sequence[SequenceStep], x: FloatArray
    ) -> list["_Tile"]:
        """Cut the rows into pieces that threads work on: one, or a multiple of their number."""
        positions = np.concatenate(
            [np.arange(step.start, step.start + len(step.token_ids)) for step in steps]
        )
        slots = np.concatenate([_slots(step, self._block_size) for step in steps])
        num_rows, num_threads = len(x), self._workers.num_threads
        num_tiles = 1
        if num_rows > _TILE_ROWS:
            num_tiles = num_threads * -(-num_rows // (_TILE_ROWS * num_threads))
        bounds = [num_rows * i // num_tiles for i in range(num_tiles + 1)]
        return [
            _Tile(
                rows=slice(a, b),
                x=x[a:b],
                slots=slots[a:b],
                rotations=self._rotations[positions[a:b], None],
                attention=(attention := plan.rows.tile(a, b)),
                leaves=leaf_arrays(attention, self._block_size, b - a),
            )
            for a, b in pairwise(bounds)
        ]

    def _layer(self, tile: "_Tile", layer: int, new: FloatArray, team: Workers) -> None:
        """Compute a layer for a tile, and what the next layer needs of it before it can begin.

        Between two layers all tiles wait for each other: a row attends to keys of other tiles.
        """
        weights, eps = self._layers[layer], self.config.norm_eps
        tile.x += team.matmul(self._attend(tile, layer, new[layer % 2]), weights.attn_out)
        tile.x += team.sum_of_parts(
            partial(_feed_forward, _normed(tile.x, eps), weights), self.config.ffn_dim
        )
        if layer + 1 < self.config.num_layers:
            self._project(tile, layer + 1, new[(layer + 1) % 2], team)

    def _project(self, tile: "_Tile", layer: int, new: FloatArray, team: Workers) -> None:
        """Compute a tile's queries, keys and values; keep the latter two.

        Args:
            tile: its queries are set.
            layer: of the model.
            new: [2, H, T, D]; keys and values of all of the step's rows, to be filled.
            team: who works on this tile.
        """
        num_kv, dim = self.config.num_kv_heads, self.config.head_dim
        normed = _normed(tile.x, self.config.norm_eps)
        heads = team.matmul(normed, self._layers[layer].qkv).reshape(len(normed), -1, dim)
        rotated = heads[:, :-num_kv].view(np.complex64)
        rotated *= tile.rotations
        queries = heads[:, : -2 * num_kv].reshape(len(normed), num_kv, -1, dim)
        tile.queries = np.ascontiguousarray(queries.swapaxes(0, 1))
        new[0, :, tile.rows] = heads[:, -2 * num_kv : -num_kv].swapaxes(0, 1)
        new[1, :, tile.rows] = heads[:, -num_kv:].swapaxes(0, 1)
        self._keys[layer][:, tile.slots] = new[0, :, tile.rows]
        self._values[layer][:, tile.slots] = new[1, :, tile.rows]

    def _attend(self, tile: "_Tile", layer: int, new: FloatArray) -> FloatArray:
        """Return a tile's attention in one layer, [rows, H * G * D]."""
        keys, values = self._keys[layer], self._values[layer]
        result = Accumulator(tile.queries)
        for causal in tile.attention.causal:
            seen = slice(causal.first_key_row, tile.rows.start + causal.end_row)
            result.begin_causal(causal, new[0, :, seen], new[1, :, seen])
        if tile.leaves is not None:
            blocks = (len(keys), -1, self._block_size, keys.shape[-1])
            result.begin_leaves(tile.leaves, keys.reshape(blocks), values.reshape(blocks))
        for segment in tile.attention.segments:
            result.add_segment(segment, keys, values)
        return result.result().swapaxes(0, 1).reshape(len(tile.x), -1)

    def _logits(
        self, x: FloatArray, batch: Sequence[SequenceStep], plan: AttentionPlan
    ) -> FloatArray:
        last_row = dict(zip(plan.order, plan.row_starts[1:], strict=True))
        rows = [last_row[i] - 1 for i, step in enumerate(batch) if step.needs_logits]
        normed = _normed(x[np.array(rows, np.intp)], self.config.norm_eps)
        normed *= self._output_norm
        return self._workers.matmul(normed, self._head.T)


@dataclass(slots=True)
class _Tile:
    """A range of a step's rows, on its way through the layers.

    Attributes:
        rows: which rows of the step.
        x: [rows, dim], the residual stream; a view of the step's.
        slots: [rows] where keys and values go.
        rotations: [rows, 1, D/2] complex64, of the rows' positions.
        attention: what they attend to.
        leaves: the leaves among it as arrays, if there are any.
        queries: [H, rows, G, D] of the layer that is next.
    """

    rows: slice
    x: FloatArray
    slots: IntArray
    rotations: ComplexArray
    attention: RowAttention
    leaves: LeafArrays | None
    queries: FloatArray = field(init=False)


def _slots(step: SequenceStep, block_size: int) -> IntArray:
    """Return the pool slots of a sequence's new tokens."""
    end = step.start + len(step.token_ids)
    first_block = step.start // block_size
    blocks = np.asarray(step.block_ids[first_block : -(-end // block_size)], np.intp)
    offset = step.start - first_block * block_size
    slots = (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)
    return slots[offset : offset + len(step.token_ids)]


def _normed(x: FloatArray, eps: float) -> FloatArray:
    """Divide each row by its root mean square. Gains are part of the matrices that follow."""
    mean_square = np.einsum("td,td->t", x, x)[:, None] / x.shape[1]
    normed: FloatArray = np.divide(x, np.sqrt(mean_square + eps), dtype=np.float32)
    return normed


def _feed_forward(x: FloatArray, weights: LayerWeights, columns: slice) -> FloatArray:
    """SwiGLU over a part of the hidden columns: (silu(x gate) * (x up)) down.

    The parts' results add up to the whole.
    """
    ffn_dim = len(weights.down)
    gate = x @ weights.gate_up[:, :ffn_dim][:, columns]
    with np.errstate(over="ignore"):  # e^-x of a very negative gate is inf, and x / inf is 0
        hidden: FloatArray = np.exp(-gate)
    hidden += 1
    np.divide(gate, hidden, out=hidden)
    hidden *= x @ weights.gate_up[:, ffn_dim:][:, columns]
    part: FloatArray = hidden @ weights.down[columns]
    return part
