"""Parameters of what is believed about replicas' caches."""

from dataclasses import dataclass

from headstart.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PrefixConfig:
    """Parameters of the approximate index and of its calibration.

    Attributes:
        speculative_s: for how long a dispatch counts as cached before its engine has answered,
            >= 0. llm-d has 2 s, Dynamo 5 s; a prefill of 50,000 tokens takes about 5 s.
        ttl_s: an entry that was not used for so long is taken as gone, > 0; None: never, as in
            vLLM and SGLang. Calibration may find one where there is none, and correct this one.
        default_capacity_tokens: of a replica whose engine does not say, >= 1. High rather than
            low: assuming twice the truth costs 3 to 35 % of P90, half of it costs four times.
        default_block_size: tokens per block of such a replica, >= 1.
        max_entries: blocks of prompt remembered per replica, >= 1; bounds memory where the
            capacity does not (about 0.2 KB each).
        max_open: dispatches without an answer that calibration keeps in mind, over all replicas.
    """

    speculative_s: float = 5.0
    ttl_s: float | None = None
    default_capacity_tokens: int = 2_000_000
    default_block_size: int = 16
    max_entries: int = 200_000
    max_open: int = 16_384

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name, is_good, wanted in (
            ("speculative_s", self.speculative_s >= 0, "0 or more seconds"),
            ("ttl_s", self.ttl_s is None or self.ttl_s > 0, "more than 0 seconds, or null"),
            ("default_capacity_tokens", self.default_capacity_tokens >= 1, "at least 1"),
            ("default_block_size", self.default_block_size >= 1, "at least 1"),
            ("max_entries", self.max_entries >= 1, "at least 1"),
            ("max_open", self.max_open >= 1, "at least 1"),
        ):
            if not is_good:
                raise ConfigError(
                    f"prefix.{name} is {getattr(self, name)!r}; use {wanted}.", param=name
                )
