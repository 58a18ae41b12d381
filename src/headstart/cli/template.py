"""`headstart template`: look at and check the templates of a folder."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headstart.cli.cache import cache_dir
from headstart.cli.errors import one_line_errors
from headstart.config.load import load_templates_folder
from headstart.errors import ConfigError
from headstart.prompt.segments import (
    ExamplesSegment,
    SchemaSegment,
    Segment,
    TextSegment,
    ToolsSegment,
)
from headstart.templates.model import TemplateVersion
from headstart.templates.registry import TemplateSet, load_folder, template_files

if TYPE_CHECKING:
    from headstart.cli.template_tokens import CountResult

_TemplatesOption = Annotated[
    Path | None,
    typer.Option(
        "--templates",
        help="Folder of templates. Default: `templates` of headstart.yaml, else ./templates.",
    ),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the `template` commands to the command line."""
    commands = typer.Typer(no_args_is_help=True, help="Look at and check prompt templates.")
    commands.command("show")(show)
    commands.command("list")(list_templates)
    commands.command("check")(check)
    app.add_typer(commands, name="template")


def show(
    template_id: Annotated[str, typer.Argument(metavar="ID", help="The template's id.")],
    templates: _TemplatesOption = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="GGUF file, tokenizer.json or model folder to count tokens with. "
            "Default: the fetched embedded model, if it is the template's.",
        ),
    ] = None,
    as_json: _JsonOption = False,
) -> None:
    """Show a template's segments, versions, hashes and token counts."""
    # Loaded here: it brings numpy, which the gateway must not carry.
    from headstart.cli.template_tokens import count_tokens

    with one_line_errors():
        version = TemplateSet.load(_folder(templates)).resolve(template_id)
        counts = count_tokens(version, tokenizer, cache_dir())
        facts = describe(version, counts)
        if as_json:
            _print_json(facts)
        else:
            _print_version(version, counts)


def list_templates(templates: _TemplatesOption = None, as_json: _JsonOption = False) -> None:
    """List the templates of a folder."""
    with one_line_errors():
        folder = _folder(templates)
        versions = TemplateSet.load(folder).versions()
        if as_json:
            _print_json([_headline(version) for version in versions])
            return
        if not versions:
            print(f"{folder} has no templates (*.yaml).")
            return
        table = Table("id", "version", "model", "segments", "static prefix hash", box=None)
        for version in versions:
            form = version.template.form
            table.add_row(
                version.template.id,
                version.version,
                escape(form.model),
                str(len(form.segments)),
                version.static_prefix_hash[:19] + "…",
            )
        _console().print(table)


def check(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Folder of templates. Default: `templates` of headstart.yaml, else ./templates.",
        ),
    ] = None,
) -> None:
    """Check every template of a folder; exit with 1 if one has a fault."""
    with one_line_errors():
        chosen = _folder(folder)
        versions, errors = load_folder(chosen)
    for error in errors:
        typer.echo(error.message, err=True)
    num_files = len(template_files(chosen))
    if errors:
        typer.echo(f"{len(errors)} of {num_files} templates have a fault.", err=True)
        raise typer.Exit(1)
    print(f"{len(versions)} templates in {chosen} are in order.")


def describe(version: TemplateVersion, counts: "CountResult") -> dict[str, object]:
    """Return what `show --json` prints; the keys are the ones of the template form."""
    tokens = counts.tokens
    by_segment = dict(tokens.by_segment) if tokens else {}
    return _headline(version) | {
        "tool_schema_version": version.tool_schema_version,
        "output_schema_version": version.output_schema_version,
        "static_tokens": tokens.total if tokens else None,
        "static_tokens_note": counts.note,
        "cache_strategy": version.template.cache_strategy.value,
        "variables": [
            {"name": v.name, "kind": v.kind.value, "order": v.order and v.order.value}
            for v in version.template.form.variables
        ],
        "segments": [
            {
                "name": segment.name,
                "kind": segment.kind.value,
                "role": segment.role if isinstance(segment, TextSegment) else None,
                "content": _content(segment),
                "tokens": by_segment.get(segment.name),
            }
            for segment in version.template.form.segments
        ],
    }


def _headline(version: TemplateVersion) -> dict[str, object]:
    return {
        "id": version.template.id,
        "version": version.version,
        "label": version.label,
        "model": version.template.form.model,
        "static_prefix_hash": version.static_prefix_hash,
        "file": str(version.template.path),
    }


def _content(segment: Segment) -> str:
    if isinstance(segment, TextSegment):
        names = [use.name for use in segment.text.uses]
        return f"text with {', '.join(names)}" if names else "text"
    if isinstance(segment, ToolsSegment):
        return f"{len(segment.tools)} tools"
    if isinstance(segment, SchemaSegment):
        return "answer schema" + (", strict" if segment.is_strict else "")
    if isinstance(segment, ExamplesSegment):
        return f"{len(segment.messages)} example messages"
    return "the request's messages"


def _print_version(version: TemplateVersion, counts: "CountResult") -> None:
    console = _console()
    tokens = counts.tokens
    head = Table(box=None, show_header=False)
    for name, value in (
        ("template", version.label),
        ("file", str(version.template.path)),
        ("model", version.template.form.model),
        ("static_prefix_hash", version.static_prefix_hash),
        ("tool_schema_version", version.tool_schema_version or "none"),
        ("output_schema_version", version.output_schema_version or "none"),
        ("static_tokens", f"{tokens.total:,}" if tokens else "unknown"),
    ):
        head.add_row(name, escape(value))
    console.print(head)
    console.print()
    by_segment = dict(tokens.by_segment) if tokens else {}
    table = Table("segment", "kind", "role", "content", box=None)
    table.add_column("tokens", justify="right")
    for segment in version.template.form.segments:
        count = by_segment.get(segment.name)
        is_static = segment.kind.value == "static"
        table.add_row(
            segment.name,
            segment.kind.value,
            segment.role if isinstance(segment, TextSegment) else "",
            _content(segment),
            f"{count:,}" if count is not None else "unknown" if is_static else "per request",
        )
    console.print(table)
    console.print(f"\nTokens: {escape(counts.note)}.", highlight=False)


def _folder(given: Path | None) -> Path:
    if given is not None:
        return given
    configured = load_templates_folder(os.environ)
    if configured is not None:
        return configured
    folder = Path("templates")
    if not folder.is_dir():
        raise ConfigError(
            "There is no template folder: headstart.yaml names none and there is no ./templates. "
            "Name one with --templates DIR.",
            param="templates",
        )
    return folder


def _console() -> Console:
    # Hashes and paths stay whole where the output is not a terminal.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=200, highlight=False)


def _print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))
