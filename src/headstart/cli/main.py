"""Entry point: collects the subcommands."""

import typer

from headstart.cli import config, engine, model, serve, simulate, template
from headstart.cli.demo import command as demo
from headstart.cli.workers import command as worker

app = typer.Typer(no_args_is_help=True, add_completion=False)
for command in (demo, serve, worker, engine, model, template, simulate, config):
    command.register(app)


def main() -> None:
    """Run the `headstart` command."""
    app()
