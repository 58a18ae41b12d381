"""The `headstart demo` command."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.errors import one_line_errors

EngineOption = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="Run it against this engine, not an own one."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --engine: the model to ask. Without: a known model or the path of a GGUF file.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Leave everything up afterwards, until Ctrl-C.")
]


def demo(
    engine: EngineOption = None,
    model: ModelOption = None,
    json: JsonOption = False,
    keep: KeepOption = False,
) -> None:
    """Show prefix caching: four scenarios with the cache off and on, in one table."""
    # Loaded here: the other commands need neither a client nor progress bars.
    from headstart.cli.demo.run import run_demo
    from headstart.cli.demo.scenarios import templates_folder
    from headstart.cli.lifecycle import run_on_uvloop
    from headstart.config.load import Flags

    with one_line_errors(), tempfile.TemporaryDirectory(prefix="headstart-demo-") as folder:
        flags = Flags(
            engines=tuple(engine or ()),
            model=model,
            port=0,
            admin="127.0.0.1:0",
            data_dir=folder,
            templates=str(templates_folder()),
            request_log="off",
        )
        run_on_uvloop(run_demo(flags, Path(folder), prints_json=json, keep=keep))


def register(app: typer.Typer) -> None:
    """Add `demo` to the command line."""
    app.command()(demo)
