"""Choose the next token from logits; pure: randomness comes from the request's own generator."""

from typing import Final

import numpy as np
import numpy.typing as npt

from headstart.engines.embedded.gguf import FloatArray
from headstart.engines.embedded.request import SamplingParams
from headstart.types import TokenId

_FIRST_CANDIDATES = 256

_COLDEST: Final = 1e-5
_HOTTEST: Final = 1e6
"""Beyond these the most probable token, or no token, is preferred by any float32 logits, and the
division would leave what float32 can hold: at 1e-46 it is by zero."""


class Sampler:
    """One request's choice of tokens; repeatable with a seed, whoever else is in the batch.

    One number is drawn per token, so the stream of numbers does not depend on the logits.

    Args:
        params: how to choose.
        default_seed: used if `params.seed` is None.
    """

    __slots__ = ("_params", "_rng")

    def __init__(self, params: SamplingParams, default_seed: int) -> None:
        self._params = params
        seed = default_seed if params.seed is None else params.seed
        self._rng = np.random.Generator(np.random.PCG64(seed & (2**64 - 1)))

    def sample(self, logits: FloatArray) -> TokenId:
        """Return a token.

        Args:
            logits: [V]; not changed.

        Raises:
            FloatingPointError: a logit is not a number; the model or the step is broken.
        """
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise FloatingPointError("a logit is not a finite number")
        if self._params.temperature == 0:
            return TokenId(best)
        point = self._rng.random()
        ids, weights = self._candidates(logits)
        cumulative = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(cumulative, point * cumulative[-1], side="right"))
        return TokenId(int(ids[min(index, len(ids) - 1)]))

    def _candidates(self, logits: FloatArray) -> tuple[npt.NDArray[np.intp], FloatArray]:
        """Return the tokens that may be chosen, and their weights (not normalised)."""
        params = self._params
        scaled = (logits - logits.max()) / min(max(params.temperature, _COLDEST), _HOTTEST)
        if params.top_k > 0:
            ids = _largest(scaled, params.top_k)
            weights = np.exp(scaled[ids])
            return _nucleus(ids, weights, weights.sum(), params.top_p)
        weights = np.exp(scaled)
        if params.top_p >= 1:
            return np.arange(len(weights)), weights
        return _smallest_nucleus(weights, params.top_p)


def _largest(values: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the `count` largest, descending; ties by index."""
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > threshold)
        ties = np.flatnonzero(values == threshold)[: count - len(above)]
        ids = np.concatenate([above, ties])
    else:
        ids = np.arange(len(values))
    return ids[np.argsort(-values[ids], kind="stable")]


def _smallest_nucleus(weights: FloatArray, top_p: float) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Find the nucleus without sorting the whole vocabulary, which is seldom needed."""
    total = weights.sum(dtype=np.float64)
    count = min(_FIRST_CANDIDATES, len(weights))
    while True:
        ids = _largest(weights, count)
        chosen = weights[ids]
        if count == len(weights) or chosen.sum(dtype=np.float64) >= top_p * total:
            return _nucleus(ids, chosen, total, top_p)
        count = min(count * 8, len(weights))


def _nucleus(
    ids: npt.NDArray[np.intp], weights: FloatArray, total: float, top_p: float
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Keep the leading tokens, most probable first, that reach `top_p` of `total`; at least one."""
    if top_p >= 1:
        return ids, weights
    before = np.cumsum(weights, dtype=np.float64) - weights
    keep = max(1, int(np.searchsorted(before, top_p * total, side="left")))
    return ids[:keep], weights[:keep]
