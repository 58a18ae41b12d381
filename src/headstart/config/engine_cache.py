"""What an entry of `engines` says of its engine's cache: events, tokenizer, size."""

from pathlib import Path
from typing import Any, Final

from headstart.config.document import Node
from headstart.config.values import Reading, check_keys, mapping_of, read_scalar, read_text
from headstart.engines.kv_feed.config import KvEventsConfig
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.errors import ConfigError
from headstart.prompt.template_traits import ContentFormat

CACHE_KEYS: Final = ("kv_events", "tokenizer", "kv_capacity_tokens", "block_size")

EVENT_KEYS: Final = ("endpoint", "replay_endpoint", "topic", "num_ranks")

MAX_RANKS: Final = 256

TOKENIZER_KEYS: Final = ("path", "chat_template", "content_format", "sample_s")


def read_engine_cache(entries: dict[str, Node], key: str, reading: Reading) -> dict[str, Any]:
    """Return the fields of a `ReplicaConfig` that an entry's `CACHE_KEYS` set.

    Args:
        entries: of the engine.
        key: of the engine, `engines[0]`.
        reading: takes the origins.

    Raises:
        ConfigError: a value cannot be used.
    """
    read: dict[str, Any] = {}
    if "kv_events" in entries:
        read["kv_events"] = _read_events(entries["kv_events"], f"{key}.kv_events", reading)
    if "tokenizer" in entries:
        read["tokenizer"] = _read_tokenizer(entries["tokenizer"], f"{key}.tokenizer", reading)
    for name in ("kv_capacity_tokens", "block_size"):
        if name in entries:
            read[name] = read_scalar(entries[name], int, f"{key}.{name}", reading)
    return read


def _read_events(node: Node, key: str, reading: Reading) -> KvEventsConfig:
    entries = mapping_of(node, key)
    check_keys(entries, EVENT_KEYS, key)
    if "endpoint" not in entries:
        raise ConfigError(
            f"{node.origin}: `{key}` has no endpoint; write e.g. `endpoint: tcp://10.0.0.7:5557`, "
            "or leave `kv_events` out: engines that list their publishers are asked",
            param=f"{key}.endpoint",
        )
    read: dict[str, Any] = {
        name: read_text(entries[name], f"{key}.{name}", reading)
        for name in ("endpoint", "replay_endpoint", "topic")
        if name in entries
    }
    if "num_ranks" in entries:
        read["num_ranks"] = read_scalar(entries["num_ranks"], int, f"{key}.num_ranks", reading)
        if read["num_ranks"] > MAX_RANKS:
            raise ConfigError(
                f"{entries['num_ranks'].origin}: `{key}.num_ranks` is {read['num_ranks']}; use at "
                f"most {MAX_RANKS}",
                param=f"{key}.num_ranks",
            )
    return KvEventsConfig(**read)


def _read_tokenizer(node: Node, key: str, reading: Reading) -> TokenizerConfig:
    if not isinstance(node.value, dict):
        return TokenizerConfig(_existing(node, key, reading))
    entries = mapping_of(node, key)
    check_keys(entries, TOKENIZER_KEYS, key)
    if "path" not in entries:
        raise ConfigError(
            f"{node.origin}: `{key}` has no path; name the model's folder, its tokenizer.json or "
            "its GGUF file",
            param=f"{key}.path",
        )
    read: dict[str, Any] = {
        name: _existing(entries[name], f"{key}.{name}", reading)
        for name in ("path", "chat_template")
        if name in entries
    }
    if "content_format" in entries:
        read["content_format"] = read_scalar(
            entries["content_format"], ContentFormat, f"{key}.content_format", reading
        )
    if "sample_s" in entries:
        read["sample_s"] = read_scalar(entries["sample_s"], float, f"{key}.sample_s", reading)
    return TokenizerConfig(**read)


def _existing(node: Node, key: str, reading: Reading) -> str:
    path = read_scalar(node, Path, key, reading)
    if not path.exists():
        raise ConfigError(f"{node.origin}: `{key}` is {path}, which does not exist", param=key)
    return str(path)
