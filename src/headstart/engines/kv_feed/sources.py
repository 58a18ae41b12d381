"""Which publishers an engine says it has; what it says is checked before anything is dialled.

    vLLM 0.32             GET /kv_event_sources   {rank: {publisher, endpoint, replay_endpoint,
                                                   topic, …}, …}, each with its own ports
    newer, embedded       likewise                [{data_parallel_rank, endpoint, …}, …]
    SGLang                GET /server_info        kv_events {endpoint_host, endpoint_port_base,
                                                   topic, dp_size}, rank r at base + r; the replay
                                                   endpoint is only in kv_events_config, as text

An answer may be wrong or hostile: it must not make us dial whatever it names. So an endpoint is
`tcp://`, and its host is the replica's own. What the operator configures is taken as it is.

Source: vLLM `vllm/entrypoints/serve/kv_events/`, `vllm/distributed/kv_events.py`
(`offset_endpoint_port`); SGLang `python/sglang/srt/server_args.py`
(`describe_kv_events_publisher`).
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headstart.engines.kv_feed.config import KvEventsConfig

_MAX_SOURCES: Final = 256
_MAX_TEXT: Final = 512
_TCP: Final = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]+):(?P<port>\d{1,5})")
_RANK: Final = re.compile(r"[0-9]{1,5}")
_ON_ZMQ: Final = ("zmq", None)
_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::"})  # noqa: S104  compared with, never bound


class BadKvSource(ValueError):
    """What an engine or the configuration says of a publisher cannot be used."""


@dataclass(frozen=True, slots=True)
class KvSource:
    """One publisher, ready to connect to.

    Attributes:
        rank: which engine of a data-parallel group.
        endpoint: address of the PUB socket.
        replay_endpoint: address of the ROUTER socket; None if it offers no replay.
        topic: prefix of the topics to read.
    """

    rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaHost:
    """Where a replica is.

    Attributes:
        name: host of its URL, without brackets.
        addresses: what the name means now; for a wildcard the first one is connected to.
    """

    name: str
    addresses: tuple[str, ...]


def configured_sources(config: KvEventsConfig, host: ReplicaHost) -> list[KvSource]:
    """Return the publishers that the operator named, one a rank.

    Raises:
        BadKvSource: an endpoint is not one.
    """
    replay = config.replay_endpoint
    return [
        KvSource(
            rank,
            _configured_endpoint(config.endpoint, rank, host),
            _configured_endpoint(replay, rank, host) if replay else None,
            config.topic,
        )
        for rank in range(config.num_ranks)
    ]


def listed_sources(body: bytes, host: ReplicaHost) -> list[KvSource]:
    """Read an answer to GET /kv_event_sources; empty if the engine publishes nothing.

    Raises:
        BadKvSource: it is not what engines answer, or names another host.
    """
    entries = _by_rank(_json(body))
    sources = [_listed_source(entry, host) for entry in entries if _is_published(entry)]
    if len({source.rank for source in sources}) != len(sources):
        raise BadKvSource("two publishers have the same rank")
    return sources


def described_sources(body: bytes, host: ReplicaHost) -> list[KvSource]:
    """Read an answer to GET /server_info; empty if the engine publishes nothing.

    Raises:
        BadKvSource: it is not what engines answer, or names another host.
    """
    info = _mapping(_json(body), "it")
    listed = info.get("kv_event_sources")
    if isinstance(listed, list) and listed:
        return listed_sources(msgspec.json.encode(listed), host)
    described = info.get("kv_events")
    arguments = _arguments(info.get("kv_events_config"))
    if described is None and not arguments.get("endpoint"):
        return []
    if described is not None:
        described = _mapping(described, "kv_events")
        base = _described_endpoint(described)
    else:
        described, base = arguments, _text(arguments.get("endpoint"), "endpoint")
    if described.get("publisher") != "zmq":
        return []
    num_ranks = _number(described.get("dp_size", info.get("dp_size", 1)), "dp_size", _MAX_SOURCES)
    replay = _optional_text(arguments.get("replay_endpoint"), "replay_endpoint")
    topic = _optional_text(described.get("topic"), "topic") or ""
    return [
        KvSource(
            rank,
            _told_endpoint(base, rank, host),
            _told_endpoint(replay, rank, host) if replay else None,
            topic,
        )
        for rank in range(max(1, num_ranks))
    ]


def _by_rank(told: object) -> list[Mapping[str, object]]:
    """Return one entry a rank, whether they were listed or told by rank."""
    if not isinstance(told, list | dict) or len(told) > _MAX_SOURCES:
        raise BadKvSource("it is no list of publishers")
    if isinstance(told, list):
        return [_mapping(entry, "a publisher") for entry in told]
    return [
        {"data_parallel_rank": _rank(rank)} | _mapping(entry, "a publisher")
        for rank, entry in told.items()
    ]


def _rank(text: str) -> int:
    if not _RANK.fullmatch(text):
        raise BadKvSource(f"{text[:100]!r} is no rank")
    return int(text)


def _is_published(entry: Mapping[str, object]) -> bool:
    """Tell whether an entry, which may be a whole configuration, is one of a publisher on ZMQ."""
    return bool(entry.get("enable_kv_cache_events", True)) and entry.get("publisher") in _ON_ZMQ


def _listed_source(entry: Mapping[str, object], host: ReplicaHost) -> KvSource:
    replay = _optional_text(entry.get("replay_endpoint"), "replay_endpoint")
    return KvSource(
        rank=_number(entry.get("data_parallel_rank", 0), "data_parallel_rank", 1 << 16),
        endpoint=_told_endpoint(_text(entry.get("endpoint"), "endpoint"), 0, host),
        replay_endpoint=_told_endpoint(replay, 0, host) if replay else None,
        topic=_optional_text(entry.get("topic"), "topic") or "",
    )


def _described_endpoint(described: Mapping[str, object]) -> str:
    host = _text(described.get("endpoint_host"), "endpoint_host")
    port = _number(described.get("endpoint_port_base"), "endpoint_port_base", 65_535)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _arguments(value: object) -> Mapping[str, object]:
    """Return SGLang's own `--kv-events-config`, which it shows as the text that it was given."""
    if isinstance(value, str) and value:
        value = _json(value.encode())
    return value if isinstance(value, dict) else {}


def _told_endpoint(endpoint: str, rank: int, host: ReplicaHost) -> str:
    """Return the address of a publisher that an engine named.

    Raises:
        BadKvSource: it is no TCP address, or one of another host than the replica's.
    """
    named, port = _split(endpoint, rank)
    if named in _WILDCARDS:
        return _join(host.addresses[0], port)
    if not _is_same(named, host):
        raise BadKvSource(
            f"its publisher at {named!r} is not on the replica's own host {host.name!r}; "
            "set kv_events.endpoint of this engine if it is right"
        )
    return _join(named if _is_address(named) else host.addresses[0], port)


def _configured_endpoint(endpoint: str, rank: int, host: ReplicaHost) -> str:
    if endpoint.startswith("ipc://"):
        return f"{endpoint}_dp{rank}" if rank else endpoint
    named, port = _split(endpoint, rank)
    return _join(host.addresses[0] if named in _WILDCARDS else named, port)


def _split(endpoint: str, rank: int) -> tuple[str, int]:
    parts = _TCP.fullmatch(endpoint)
    if parts is None:
        raise BadKvSource(f"{endpoint[:100]!r} is not tcp://HOST:PORT")
    port = int(parts["port"]) + rank
    if not 0 < port < 1 << 16:
        raise BadKvSource(f"{endpoint[:100]!r} has no port that can be connected to")
    return parts["host"].strip("[]"), port


def _join(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _is_same(named: str, host: ReplicaHost) -> bool:
    if named.lower() == host.name.lower() or named in host.addresses:
        return True
    # A replica on this machine may be known by any of its loopback names.
    return _is_loopback(named) and all(_is_loopback(each) for each in host.addresses)


def _is_loopback(name: str) -> bool:
    return name.lower() == "localhost" or (
        _is_address(name) and ipaddress.ip_address(name).is_loopback
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadKvSource("it is no JSON") from exc


def _mapping(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadKvSource(f"{name} is no object")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAX_TEXT:
        raise BadKvSource(f"{name} is no text of at most {_MAX_TEXT} characters")
    return value


def _optional_text(value: object, name: str) -> str | None:
    return None if value is None or value == "" else _text(value, name)


def _number(value: object, name: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise BadKvSource(f"{name} is no number from 0 to {most}")
    return value
