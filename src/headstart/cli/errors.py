"""Show errors that we raise on purpose as one line; anything else keeps its traceback."""

import contextlib
from collections.abc import Iterator

import typer

from headstart.errors import HeadstartError


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Print a `HeadstartError` to standard error and end with status 1."""
    try:
        yield
    except HeadstartError as exc:
        typer.echo(f"headstart: {exc.message}", err=True)
        raise typer.Exit(1) from exc
