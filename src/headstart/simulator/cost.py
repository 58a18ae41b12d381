"""How long an engine's step takes: what it computes in, seconds out.

    step = base + token · n                      n new tokens, those of decoding requests included
         + Σ_i (request + own · n_i + context · c_i + pair · n_i·c_i)       i prefills n_i tokens
         + decode_context · Σ_j c_j                                         j decodes one

`c_i` is the context that a new token of the request attends to, on the mean. Small steps take a
floor in place of the first line, and no request adds less than nothing. Steps that are alike
are added up in closed form, so that a long prefill or a long decode costs the simulator as little
as a short one.
"""

from collections.abc import Sequence
from typing import Final

import msgspec


class CostModel(msgspec.Struct, frozen=True):
    """Coefficients of a step's duration; see the module. All in seconds.

    Attributes:
        name: what it is called in reports.
        source: where the figures are from.
        base_s: of every step with more tokens than `floors` covers.
        token_s: per new token.
        floors: (most tokens, seconds) for small steps, in ascending order: these take so long
            whatever they hold.
        request_s: per prefilling request and step.
        own_s: per new token of a prefilling request.
        context_s: per token of its context.
        pair_s: per new token and token of its context.
        decode_context_s: per token of context of a decoding request.
    """

    name: str
    source: str
    base_s: float
    token_s: float
    floors: tuple[tuple[int, float], ...] = ()
    request_s: float = 0.0
    own_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    decode_context_s: float = 0.0

    def linear_s(self, num_tokens: int) -> float:
        """Return what a step with so many new tokens takes apart from attention."""
        for most, seconds in self.floors:
            if num_tokens <= most:
                return seconds
        return self.base_s + self.token_s * num_tokens

    def attention_s(self, num_tokens: int, context: float) -> float:
        """Return what one prefilling request adds to a step.

        Args:
            num_tokens: new ones of it.
            context: that these attend to, on the mean.
        """
        seconds = (
            self.request_s
            + self.own_s * num_tokens
            + (self.context_s + self.pair_s * num_tokens) * context
        )
        return seconds if seconds > 0.0 else 0.0

    def prefill_s(self, num_tokens: int, cached_tokens: int, token_budget: int = 2048) -> float:
        """Return the time to prefill one prompt on an idle engine.

        Args:
            num_tokens: to compute.
            cached_tokens: before them.
            token_budget: new tokens in a step, at most.
        """
        seconds, done = 0.0, 0
        while done < num_tokens:
            chunk = min(token_budget, num_tokens - done)
            context = cached_tokens + done + 0.5 * chunk
            seconds += self.linear_s(chunk) + self.attention_s(chunk, context)
            done += chunk
        return seconds


_PREBLE: Final = "https://arxiv.org/abs/2407.00023, fits published with its code"

MISTRAL_7B_A100: Final = CostModel(
    name="mistral-7b-a100",
    source=_PREBLE,
    base_s=5.51e-3 / 0.85,
    token_s=0.0503e-3 / 0.85,
    floors=((63, 8.96e-3 / 0.85), (255, 10.5e-3 / 0.85)),
    request_s=0.124e-3 / 0.85,
    own_s=-7.45e-7 / 0.85,
    context_s=1.72e-6 / 0.85,
    pair_s=1.36e-9 / 0.85,
    # The fit is for prefilling. A decoding request reads its KV once: 128 KiB a token (32 layers,
    # 8 heads of 128, K and V, two bytes) at 1.4 TB/s, 70 % of the card's bandwidth.
    decode_context_s=131_072 / 1.4e12,
)

LLAMA3_70B_H100_TP2: Final = CostModel(
    name="llama-3-70b-h100-tp2",
    source=_PREBLE,
    base_s=18.67e-3,
    token_s=0.0799e-3,
    context_s=2.685e-6,
    pair_s=7.44e-10,
    # 320 KiB a token (80 layers, 8 heads of 128) over two cards of 3.35 TB/s, 70 % of it.
    decode_context_s=327_680 / (2 * 0.7 * 3.35e12),
)


class Hardware(msgspec.Struct, frozen=True):
    """What the analytic model knows of a machine and a model.

    Attributes:
        name: of both.
        num_parameters: of the model.
        num_layers: of it.
        hidden_size: of its attention: heads times their size.
        kv_bytes_per_token: of all layers.
        weight_bytes: that a step reads.
        flops: a second, all cards together.
        bandwidth: bytes a second, likewise.
        compute_ratio: share of `flops` that is reached.
        bandwidth_ratio: share of `bandwidth`.
        overhead_s: of a step, whatever it computes.
    """

    name: str
    num_parameters: float
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int
    weight_bytes: float
    flops: float
    bandwidth: float
    compute_ratio: float = 0.5
    bandwidth_ratio: float = 0.7
    overhead_s: float = 2e-3


LLAMA3_8B_H100: Final = Hardware(
    name="llama-3-8b-h100",
    num_parameters=8.03e9,
    num_layers=32,
    hidden_size=4096,
    kv_bytes_per_token=131_072,
    weight_bytes=16.1e9,
    flops=989e12,
    bandwidth=3.35e12,
)
"""Dense bf16 peak and HBM3 bandwidth of NVIDIA's data sheet for the H100 SXM."""


def analytic(hardware: Hardware) -> CostModel:
    """Return the costs that follow from FLOPs and bandwidth.

    A step computes 2 FLOPs per parameter and token, or reads the weights, whichever takes longer;
    attention takes 4 FLOPs per token, token of context, layer and unit of width; a decoding
    request reads its KV.

    Source: the roofline model as applied to transformers, arXiv:2402.16363.
    """
    flops = hardware.flops * hardware.compute_ratio
    bandwidth = hardware.bandwidth * hardware.bandwidth_ratio
    token_s = 2.0 * hardware.num_parameters / flops
    read_s = hardware.weight_bytes / bandwidth
    return CostModel(
        name=hardware.name,
        source="FLOPs and bandwidth",
        base_s=hardware.overhead_s,
        token_s=token_s,
        floors=((int(read_s / token_s), hardware.overhead_s + read_s),),
        pair_s=4.0 * hardware.num_layers * hardware.hidden_size / flops,
        decode_context_s=hardware.kv_bytes_per_token / bandwidth,
    )


def cost_models() -> Sequence[CostModel]:
    """Return those that are known by name, the default first."""
    return (MISTRAL_7B_A100, LLAMA3_70B_H100_TP2, analytic(LLAMA3_8B_H100))
