"""Read the files that a template names: inside its folder, UTF-8, of bounded size."""

import json
from collections.abc import Mapping
from pathlib import Path

from headstart.errors import TemplateError
from headstart.prompt.canonical_json import CanonicalJsonError, canonicalize, parse_strict
from headstart.templates.yaml_nodes import Located

MAX_FILE_BYTES = 8_000_000
"""A larger file is a mistake: no model's context holds it."""


def read_text(path: Path) -> str:
    """Return a file's text without a byte order mark, which would be invisible in a prompt.

    Raises:
        TemplateError: not there, too large, or not UTF-8; names the line.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TemplateError(f"{path}: is larger than {MAX_FILE_BYTES:,} bytes")
        data = path.read_bytes()
    except OSError as exc:
        raise TemplateError(f"{path}: cannot be read: {exc.strerror}") from exc
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise TemplateError(f"{path}:{line}: is not UTF-8; save it as UTF-8") from exc


def resolve(reference: Located, root: Path) -> Path:
    """Return the path that a template names, relative to the template's file.

    Raises:
        TemplateError: not a file, or outside `root` (symbolic links are followed first).
    """
    name = reference.text()
    path = reference.file.parent / name
    try:
        target = path.resolve()
        is_inside = target.is_relative_to(root.resolve())
        is_file = target.is_file()
    except (OSError, RuntimeError, ValueError):
        reference.fail(f"{reference.what}: {name!r} is not a usable path")
    if not is_inside:
        reference.fail(
            f"{reference.what}: {name!r} leaves the folder {root}; copy the file into it"
        )
    if not is_file:
        reference.fail(f"{reference.what}: there is no file {path}")
    return path


def read_json(path: Path) -> object:
    """Return a JSON file's value; refuses repeated keys and numbers that readers round.

    Raises:
        TemplateError: with the line where the parser knows it.
    """
    text = read_text(path)
    try:
        return parse_strict(text)
    except json.JSONDecodeError as exc:
        raise TemplateError(f"{path}:{exc.lineno}: is not JSON: {exc.msg}") from exc
    except CanonicalJsonError as exc:
        raise TemplateError(f"{path}: {exc.message}") from exc


def read_tools(path: Path) -> tuple[bytes, ...]:
    """Return each tool's canonical JSON, sorted by function name.

    Raises:
        TemplateError: not a list of OpenAI tool definitions, or a function defined twice.
    """
    value = read_json(path)
    if not isinstance(value, list) or not value:
        raise TemplateError(f"{path}: must be a list of at least one tool definition")
    tools: dict[str, bytes] = {}
    for index, tool in enumerate(value):
        name = _tool_name(tool, f"{path}: [{index}]")
        if name in tools:
            raise TemplateError(f"{path}: defines the function {name!r} twice; keep one")
        tools[name] = _canonical(tool, path, f"[{index}]")
    return tuple(tools[name] for name in sorted(tools))


def read_schema(path: Path) -> bytes:
    """Return a JSON Schema's canonical JSON.

    Raises:
        TemplateError: not an object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise TemplateError(f"{path}: must be a JSON Schema, that is an object")
    return _canonical(value, path, "")


def read_messages(path: Path) -> tuple[bytes, ...]:
    """Return each message's canonical JSON in the file's order; strings in it do not change.

    Raises:
        TemplateError: not a list of messages with roles.
    """
    value = read_json(path)
    if not isinstance(value, list) or not value:
        raise TemplateError(f"{path}: must be a list of at least one message")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TemplateError(f"{path}: [{index}] must be a message with a `role`")
    return tuple(_canonical(m, path, f"[{index}]") for index, m in enumerate(value))


def _tool_name(tool: object, where: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    is_function = isinstance(tool, Mapping) and tool.get("type") == "function"
    if not is_function or not isinstance(name, str) or not name:
        raise TemplateError(
            f'{where} must have the form {{"type": "function", "function": {{"name": "…"}}}}'
        )
    return name


def _canonical(value: object, path: Path, where: str) -> bytes:
    try:
        return canonicalize(value)
    except CanonicalJsonError as exc:
        raise TemplateError(f"{path}: {where}{exc.path.removeprefix('$')} {exc.problem}") from exc
