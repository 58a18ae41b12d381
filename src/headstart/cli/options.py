"""The flags that set configuration keys, for every command that loads a configuration."""

import os
from pathlib import Path
from typing import Annotated

import typer

from headstart.config.load import Flags, LoadedConfig, load_config

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Default: ./headstart.yaml if it is there."),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="An engine to front; give one for each."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What the engines of --engine serve (default: they are asked). Without engines: the "
        "embedded model, a known name or the path of a GGUF file.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="expected_ttft (default), prefix_hash, session_affinity, least_loaded, round_robin, "
        "lmetric or sglang_cache_aware.",
    ),
]
HostOption = Annotated[str | None, typer.Option(help="Address of the data port [127.0.0.1].")]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Data port [8080]; 0 takes a free one.")
]
AdminOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Admin port. Default: the data port + 1 on loopback."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Gateway processes that share the data port [1]."),
]
DataDirOption = Annotated[str | None, typer.Option(metavar="DIR", help="Where records are kept.")]
TemplatesOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Folder of prompt templates.")
]
RequestLogOption = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="JSON line per request: a file, `-` for stdout [-], `off`."),
]
DrainOption = Annotated[
    float | None, typer.Option(min=0, help="How long open requests may go on after SIGTERM [30].")
]


def load(
    *,
    config: Path | None,
    engine: list[str] | None,
    model: str | None,
    policy: str | None,
    host: str | None,
    port: int | None,
    admin: str | None,
    workers: int | None,
    data_dir: str | None,
    templates: str | None,
    request_log: str | None,
    drain_s: float | None,
) -> LoadedConfig:
    """Load the configuration of the current folder and environment under these flags.

    Raises:
        ConfigError: see `config.load.load_config`.
    """
    flags = Flags(
        engines=tuple(engine or ()),
        model=model,
        policy=policy,
        host=host,
        port=port,
        admin=admin,
        workers=workers,
        data_dir=data_dir,
        templates=templates,
        request_log=request_log,
        drain_s=drain_s,
    )
    return load_config(flags, os.environ, file=config)
