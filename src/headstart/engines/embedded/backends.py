"""Make the backend that a name stands for, and say plainly what it lacks; computes nothing."""

from typing import Literal

from headstart.engines.embedded.backend import Backend
from headstart.engines.embedded.gguf import GgufModel
from headstart.errors import ConfigError


def make_backend(
    kind: Literal["numpy", "torch"],
    model: GgufModel,
    num_blocks: int,
    block_size: int,
    num_threads: int | None,
) -> Backend:
    """Read the weights and reserve the pool; the arithmetic's library is loaded only here.

    Args:
        kind: which library.
        model: a llama-architecture file.
        num_blocks: KV blocks.
        block_size: tokens per block.
        num_threads: threads that compute; None: the physical cores.

    Raises:
        ModelUnavailable: the file cannot be used.
        ConfigError: torch is not installed, or there is too little memory.
    """
    try:
        if kind == "torch":
            from headstart.engines.embedded.torch_backend import TorchBackend

            return TorchBackend(model, num_blocks, block_size, num_threads)
        from headstart.engines.embedded.numpy_backend import NumpyBackend

        return NumpyBackend(model, num_blocks, block_size, num_threads)
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise ConfigError(
            "The backend 'torch' needs torch, which is not installed; "
            "install headstart[torch], or choose the backend 'numpy'.",
            param="--backend",
        ) from exc
    except MemoryError as exc:
        raise ConfigError(
            f"The model and a KV pool of {num_blocks * block_size} tokens do not fit in memory; "
            "choose a smaller --kv-tokens.",
            param="--kv-tokens",
        ) from exc
