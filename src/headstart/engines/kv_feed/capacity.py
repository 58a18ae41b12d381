"""How much KV a replica can hold, read from its metrics page.

    vLLM, embedded   vllm:cache_config_info{engine, block_size, num_gpu_blocks,
                     kv_cache_size_tokens}: one line per data-parallel engine
    SGLang           sglang:max_total_num_tokens and sglang:page_size, one line per rank; before
                     0.5.11 sglang:cache_config_info{page_size, num_pages}

The ranks of a tensor-parallel group each hold a share of the same tokens, so of theirs the largest
counts; data-parallel engines hold different ones, so theirs add up.

Source: `/metrics` of vLLM 0.32; SGLang `python/sglang/srt/observability/metrics_collector.py`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(
    r"(vllm:cache_config_info|sglang:(?:cache_config_info|max_total_num_tokens|page_size))"
    r"(?:\{(.*)\})? (\S+)"
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_NAMES: Final = ("vllm:cache_config_info", "sglang:")
_MAX_TOKENS: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """What one replica can hold.

    Attributes:
        tokens: in all its engines together; None if the page does not say.
        block_size: tokens per block; None if the page does not say, or says several.
    """

    tokens: int | None
    block_size: int | None


UNKNOWN_CAPACITY: Final = KvCapacity(None, None)


def read_capacity(page: bytes) -> KvCapacity:
    """Return what a metrics page says of the KV cache's size; unknown is None, never zero.

    Cost: below 1 ms for vLLM's 50 KB.
    """
    tokens: dict[str, int] = {}
    sizes: set[int] = set()
    for name, labels, value in _samples(page.decode("utf-8", "replace")):
        rank = labels.get("engine") or labels.get("dp_rank") or "0"
        size, held = _facts(name, labels, value)
        if size:
            sizes.add(size)
        if held:
            tokens[rank] = max(held, tokens.get(rank, 0))
    return KvCapacity(
        tokens=sum(tokens.values()) or None,
        block_size=sizes.pop() if len(sizes) == 1 else None,
    )


def _samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in page.splitlines():
        if not line.startswith(_NAMES):
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        name, labels, value = sample.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        yield name, dict(_LABEL.findall(labels or "")), number


def _facts(name: str, labels: dict[str, str], value: float) -> tuple[int, int]:
    """Return block size and tokens that one sample tells of; 0 where it tells nothing."""
    match name:
        case "vllm:cache_config_info":
            size = _positive(labels.get("block_size"))
            # With several kinds of attention a block is not `block_size` tokens of each.
            tokens = _positive(labels.get("kv_cache_size_tokens"))
            return size, tokens or size * _positive(labels.get("num_gpu_blocks"))
        case "sglang:cache_config_info":
            size = _positive(labels.get("page_size"))
            return size, size * _positive(labels.get("num_pages"))
        case "sglang:max_total_num_tokens":
            return 0, _positive(value)
        case _:
            return _positive(value), 0


def _positive(value: str | float | None) -> int:
    try:
        number = int(value or 0)
    except (ValueError, OverflowError):
        return 0
    return number if 0 < number < _MAX_TOKENS else 0
