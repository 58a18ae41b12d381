"""Everything that one embedded engine process can be told, as flags and as values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headstart.engines.embedded.kv_publisher import KvEventsConfig

DEFAULT_BLOCK_SIZE = 16
DEFAULT_KV_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine process; the model's file must exist (`engines.embedded.fetch` brings it).

    Attributes:
        model_path: GGUF file.
        model_name: what clients call the model.
        host: address to listen on.
        port: 0 takes a free one.
        backend: numpy fp32, or torch bf16 if torch is installed.
        block_size: tokens per KV block.
        num_blocks: blocks in the pool.
        enable_prefix_caching: reuse KV between requests.
        max_num_batched_tokens: most tokens computed in one step.
        max_num_seqs: most sequences running at once.
        threads: of the linear algebra; None leaves it to the library.
        kv_events: where KV events are published; None publishes none.
        drain_s: how long open requests may go on after SIGTERM.
    """

    model_path: Path
    model_name: str
    host: str = "127.0.0.1"
    port: int = 0
    backend: Literal["numpy", "torch"] = "numpy"
    block_size: int = DEFAULT_BLOCK_SIZE
    num_blocks: int = DEFAULT_KV_TOKENS // DEFAULT_BLOCK_SIZE
    enable_prefix_caching: bool = True
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    threads: int | None = None
    kv_events: KvEventsConfig | None = None
    drain_s: float = 30.0

    def arguments(self) -> list[str]:
        """Return the flags of `headstart engine` that mean the same."""
        flags = [
            f"--model={self.model_path}",
            f"--served-model-name={self.model_name}",
            f"--host={self.host}",
            f"--port={self.port}",
            f"--backend={self.backend}",
            f"--block-size={self.block_size}",
            f"--num-blocks={self.num_blocks}",
            f"--max-num-batched-tokens={self.max_num_batched_tokens}",
            f"--max-num-seqs={self.max_num_seqs}",
            f"--drain-s={self.drain_s}",
        ]
        if not self.enable_prefix_caching:
            flags.append("--no-prefix-caching")
        if self.threads is not None:
            flags.append(f"--threads={self.threads}")
        if self.kv_events is not None:
            flags.append(f"--kv-events-endpoint={self.kv_events.endpoint}")
            flags.append(f"--kv-events-topic={self.kv_events.topic}")
            if self.kv_events.replay_endpoint is not None:
                flags.append(f"--kv-replay-endpoint={self.kv_events.replay_endpoint}")
        return flags


_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Return the variables that bound the linear algebra's threads; read when numpy is loaded."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))
