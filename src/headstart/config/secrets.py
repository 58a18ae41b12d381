"""Secrets: where a configuration may name one, and how it is fetched.

A configuration file is copied, committed and pasted into tickets, so it names a secret's place
(`*_env`, `*_file`) and never holds it. No message in here contains a secret.
"""

from collections.abc import Mapping
from pathlib import Path

from headstart.config.document import Node, Origin
from headstart.config.values import Reading, read_scalar, read_text
from headstart.errors import ConfigError


def refuse_literal(entries: Mapping[str, Node], name: str, key: str) -> None:
    """Refuse a secret in plain sight; the message does not repeat it.

    Args:
        entries: the mapping that may hold one.
        name: the secret's key, e.g. `api_key`.
        key: the dotted key of that.

    Raises:
        ConfigError: it is there.
    """
    if name in entries:
        raise ConfigError(
            f"{entries[name].origin}: `{key}` would keep a secret in this file; put it into an "
            f"environment variable and write `{name}_env: ITS_NAME`, or into a file and write "
            f"`{name}_file: PATH`",
            param=key,
        )


def read_secret(
    entries: Mapping[str, Node],
    name: str,
    key: str,
    environment: Mapping[str, str],
    reading: Reading,
) -> str | None:
    """Fetch the secret that `NAME_env` or `NAME_file` points to; None without either.

    Args:
        entries: the mapping that may hold these keys.
        name: the secret's key without its ending, e.g. `api_key`.
        key: the dotted key of the secret, under which its origin is noted.
        environment: the process's variables.
        reading: takes the origin.

    Raises:
        ConfigError: both are given, a literal is, or what they point to is absent or empty.
    """
    refuse_literal(entries, name, key)
    variable, file = entries.get(f"{name}_env"), entries.get(f"{name}_file")
    if variable is not None and file is not None:
        raise ConfigError(
            f"{file.origin}: `{key}_env` and `{key}_file` are both given; keep one of them",
            param=key,
        )
    if variable is not None:
        return _from_environment(variable, f"{key}_env", key, environment, reading)
    if file is not None:
        return _from_file(file, f"{key}_file", key, reading)
    return None


def _from_environment(
    node: Node, named_by: str, key: str, environment: Mapping[str, str], reading: Reading
) -> str:
    name = read_text(node, named_by, reading)
    secret = environment.get(name, "").strip()
    if not secret:
        state = "empty" if name in environment else "not set"
        raise ConfigError(
            f"{node.origin}: the environment variable {name}, named by `{named_by}`, is {state}; "
            f"set it before you start headstart",
            param=named_by,
        )
    reading.note(key, Origin("environment", f"environment variable {name}, see {node.origin}"))
    return _checked(secret, node, named_by)


def _from_file(node: Node, named_by: str, key: str, reading: Reading) -> str:
    path = read_scalar(node, Path, named_by, reading)
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"{node.origin}: cannot read {path}, named by `{named_by}`: {why}", param=named_by
        ) from error
    if not secret:
        raise ConfigError(f"{node.origin}: {path}, named by `{named_by}`, is empty", param=named_by)
    reading.note(key, Origin("file", f"{path}, see {node.origin}"))
    return _checked(secret, node, named_by)


def _checked(secret: str, node: Node, named_by: str) -> str:
    # It becomes a header's value: a line break inside would be a second header.
    if not (secret.isascii() and secret.isprintable()):
        raise ConfigError(
            f"{node.origin}: the secret that `{named_by}` points to has characters that no HTTP "
            "header may have; give a key of one line of printable ASCII",
            param=named_by,
        )
    return secret
