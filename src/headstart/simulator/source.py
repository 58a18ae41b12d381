"""What is replayed, by the name that people give: a file, or a generator."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from headstart.config.values import nearest
from headstart.errors import ConfigError
from headstart.simulator.formats.recognise import read_trace
from headstart.simulator.generators.multi_turn import MultiTurnConfig, multi_turn
from headstart.simulator.generators.semantic_mix import ARENA, LMSYS, SHAREGPT, semantic_mix
from headstart.simulator.generators.shared_prefix import LLM_D, SGLANG, shared_prefix
from headstart.simulator.trace import Trace

PREFIX: Final = "generate:"

GENERATORS: Final[dict[str, Callable[[int], Trace]]] = {
    "llm-d": lambda seed: shared_prefix(LLM_D, seed),
    "sglang": lambda seed: shared_prefix(SGLANG, seed),
    "multi-turn": lambda seed: multi_turn(MultiTurnConfig(), seed),
    "mix-sharegpt": lambda seed: semantic_mix(SHAREGPT, seed),
    "mix-lmsys": lambda seed: semantic_mix(LMSYS, seed),
    "mix-arena": lambda seed: semantic_mix(ARENA, seed),
}
"""Each draws a trace from a seed, with the configuration of its source."""


def open_trace(source: str, seed: int = 0) -> Trace:
    """Return the trace in a file, or of the generator that `generate:NAME` names.

    Args:
        source: path or name.
        seed: of a generator's draws.

    Raises:
        ConfigError: no such generator.
        TraceError: the file is none, or not as its format says.
    """
    if not source.startswith(PREFIX):
        return read_trace(Path(source).expanduser())
    name = source.removeprefix(PREFIX)
    if name not in GENERATORS:
        raise ConfigError(f"There is no generator {name!r}; {nearest(name, GENERATORS)}")
    return GENERATORS[name](seed)


def shortened(trace: Trace, num_requests: int) -> Trace:
    """Return the first so many requests of a trace."""
    return msgspec.structs.replace(trace, requests=trace.requests[:num_requests])


def reblocked(trace: Trace, block_tokens: int) -> Trace:
    """Return the trace with blocks of another size.

    Args:
        trace: as it was read.
        block_tokens: a multiple of its own.

    Raises:
        ConfigError: it is not.
    """
    factor, rest = divmod(block_tokens, trace.block_tokens)
    if rest or factor < 1:
        near = max(round(block_tokens / trace.block_tokens), 1) * trace.block_tokens
        raise ConfigError(
            f"Blocks of {block_tokens} tokens cannot be made of blocks of {trace.block_tokens}, "
            f"as this trace has them; give a multiple, e.g. {near}."
        )
    return trace.coarsened(factor)
