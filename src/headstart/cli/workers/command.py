"""`headstart serve-worker`: how the supervisor starts a worker; people do not call it."""

from typing import Annotated

import typer


def serve_worker(
    descriptor: Annotated[int, typer.Argument(help="Socket to the supervisor.")],
) -> None:
    """Serve as one of several workers."""
    from headstart.cli.lifecycle import run_on_uvloop
    from headstart.cli.workers.worker import run_worker

    raise typer.Exit(run_on_uvloop(run_worker(descriptor)))


def register(app: typer.Typer) -> None:
    """Add the command to the command line, without showing it."""
    app.command("serve-worker", hidden=True)(serve_worker)
