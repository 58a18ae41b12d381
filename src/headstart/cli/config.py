"""`headstart config`: what is in force, and where it was set."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.errors import one_line_errors
from headstart.config.explain import Setting, settings


def explain(
    config: options.ConfigOption = None,
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    policy: options.PolicyOption = None,
    host: options.HostOption = None,
    port: options.PortOption = None,
    admin: options.AdminOption = None,
    workers: options.WorkersOption = None,
    data_dir: options.DataDirOption = None,
    templates: options.TemplatesOption = None,
    request_log: options.RequestLogOption = None,
    drain_s: options.DrainOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every value that `headstart serve` would use with these flags, and its origin."""
    with one_line_errors():
        loaded = options.load(
            config=config,
            engine=engine,
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
    lines = settings(loaded)
    for warning in loaded.warnings:
        typer.echo(f"headstart: {warning}", err=True)
    typer.echo(_as_json(lines) if as_json else _as_table(lines))


def _as_json(lines: list[Setting]) -> str:
    return json.dumps({"settings": [asdict(line) for line in lines]}, indent=2, ensure_ascii=False)


def _as_table(lines: list[Setting]) -> str:
    # Plain columns without rulings: people grep this.
    values = [_shown(line.value) for line in lines]
    key_width = max(len(line.key) for line in lines)
    value_width = max(len(value) for value in values)
    return "\n".join(
        f"{line.key:<{key_width}}  {value:<{value_width}}  {line.origin}"
        for line, value in zip(lines, values, strict=True)
    )


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def register(app: typer.Typer) -> None:
    """Add the `config` commands to the command line."""
    commands = typer.Typer(no_args_is_help=True, help="Look at the configuration.")
    commands.command("explain")(explain)
    app.add_typer(commands, name="config")
