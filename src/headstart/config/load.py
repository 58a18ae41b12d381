"""Reads the configuration: flags win over environment over file over defaults.

The only reader of the configuration file and of the `HEADSTART_…` variables. Each source becomes
a tree of nodes, the trees are merged, and the result is read once, so that every value is
checked in the same way wherever it came from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import platformdirs

from headstart.config.address import Address, parse_address
from headstart.config.document import Node, Origin, merge, nest, read_document
from headstart.config.entries import read_tenants
from headstart.config.gossip import read_gossip
from headstart.config.schema import (
    LISTS,
    SCALARS,
    SECTIONS,
    HeadstartConfig,
    LogTarget,
)
from headstart.config.secrets import read_secret, refuse_literal
from headstart.config.sources import read_engine_list
from headstart.config.tls import check_tls
from headstart.config.values import (
    Reading,
    check_keys,
    nearest,
    read_scalar,
    read_section,
    read_text,
)
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.build import SourceEntry
from headstart.errors import ConfigError

DEFAULT_FILE = "headstart.yaml"
"""Read from the current folder if it is there and no other file is named."""

PREFIX = "HEADSTART_"

ADMIN_KEY_VARIABLE = "HEADSTART_ADMIN_KEY"
"""Holds the admin key where the configuration names no other place."""

_NOT_KEYS = frozenset(
    (
        "HEADSTART_CONFIG",
        "HEADSTART_CACHE_DIR",
        ADMIN_KEY_VARIABLE,
    )
)
"""Variables with our prefix that set no key: this file's place, the models' place, a secret."""

_TEST_PREFIXES = ("HEADSTART_TEST_", "HEADSTART_CI_")
"""Variables of the tests and of CI; they set no key either."""

_DEFAULT_LISTEN = Address("127.0.0.1", 8080)

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line gave; None or empty where it gave nothing."""

    engines: tuple[str, ...] = ()
    model: str | None = None
    policy: str | None = None
    host: str | None = None
    port: int | None = None
    admin: str | None = None
    workers: int | None = None
    data_dir: str | None = None
    templates: str | None = None
    request_log: str | None = None
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where it came from.

    Attributes:
        config: complete and checked.
        origins: by dotted key, `engines[0].url`; a key that is absent has its default.
        file: the file that was read, if any.
        warnings: what was found and not used, in words.
    """

    config: HeadstartConfig
    origins: Mapping[str, Origin]
    file: Path | None
    warnings: tuple[str, ...]


def load_config(
    flags: Flags,
    environment: Mapping[str, str],
    *,
    file: Path | None = None,
    folder: Path | None = None,
) -> LoadedConfig:
    """Read all sources and compose the configuration.

    Args:
        flags: from the command line.
        environment: the process's variables.
        file: the configuration file; None means `HEADSTART_CONFIG`, else `headstart.yaml` in
            `folder` if there is one.
        folder: what relative paths in flags and variables are relative to; None means the
            current one.

    Raises:
        ConfigError: a source cannot be read or a value cannot be used; names the place.
    """
    folder = (folder or Path.cwd()).absolute()
    path = _find_file(file, environment, folder)
    tree = merge(_read_tree(path, environment, folder), flag_tree(flags, folder))
    reading = Reading()
    config = _compose(tree, flags, environment, reading)
    warnings = (*_unused_variables(environment, reading), *_unused_queue_keys(config, reading))
    return LoadedConfig(config, reading.origins, path, warnings)


def load_templates_folder(
    environment: Mapping[str, str], *, folder: Path | None = None
) -> Path | None:
    """Read the key `templates` alone, for commands that work on templates where no secret is set.

    Args:
        environment: the process's variables.
        folder: as for `load_config`.

    Raises:
        ConfigError: a source cannot be read, or what it names is no folder.
    """
    folder = (folder or Path.cwd()).absolute()
    tree = _read_tree(_find_file(None, environment, folder), environment, folder)
    assert isinstance(tree.value, dict)
    return _templates(tree.value.get("templates"), Reading())


def environment_tree(environment: Mapping[str, str], folder: Path) -> Node:
    """Build the tree of what `HEADSTART_…` variables set; empty ones set nothing."""
    values: dict[str, Node] = {}
    for key in variable_keys():
        name = variable_name(key)
        text = environment.get(name, "")
        if not text:
            continue
        origin = Origin("environment", name, folder)
        value: Node = Node(text, origin)
        if key == "engines":
            value = _engine_list(text.replace(",", " ").split(), None, origin)
        values[key] = value
    return nest(values, Origin("environment"))


def flag_tree(flags: Flags, folder: Path) -> Node:
    """Build the tree of what the command line sets; `--host` and `--port` are applied later."""
    values: dict[str, Node] = {}
    for key, flag, value in (
        ("routing.policy", "--policy", flags.policy),
        ("admin", "--admin", flags.admin),
        ("workers", "--workers", flags.workers),
        ("data_dir", "--data-dir", flags.data_dir),
        ("templates", "--templates", flags.templates),
        ("request_log", "--request-log", flags.request_log),
        ("drain_s", "--drain-s", flags.drain_s),
    ):
        if value is not None:
            values[key] = Node(value, Origin("flag", flag, folder))
    if flags.engines:
        origin = Origin("flag", "--engine", folder)
        values["engines"] = _engine_list(flags.engines, flags.model, origin)
    elif flags.model is not None:
        values["embedded.model"] = Node(flags.model, Origin("flag", "--model", folder))
    return nest(values, Origin("flag"))


def variable_name(key: str) -> str:
    """Name the environment variable that sets a key."""
    return PREFIX + key.upper().replace(".", "_")


def variable_keys() -> Iterator[str]:
    """List the keys that a variable can set: all but the entries of lists."""
    yield from SCALARS
    yield "engines"
    for name, section in SECTIONS.items():
        yield from _leaf_keys(section, name)


def _leaf_keys(section: type, key: str) -> Iterator[str]:
    assert is_dataclass(section)
    hints = get_type_hints(section)
    for one in fields(section):
        inner = f"{key}.{one.name}"
        if isinstance(hints[one.name], type) and is_dataclass(hints[one.name]):
            yield from _leaf_keys(hints[one.name], inner)
        else:
            yield inner


def _read_tree(path: Path | None, environment: Mapping[str, str], folder: Path) -> Node:
    tree = Node({}, Origin("default")) if path is None else read_document(path)
    return merge(tree, environment_tree(environment, folder))


def _find_file(file: Path | None, environment: Mapping[str, str], folder: Path) -> Path | None:
    named = environment.get("HEADSTART_CONFIG", "")
    path = file or (Path(named) if named else None)
    if path is not None:
        path = folder / path.expanduser()
        if not path.is_file():
            source = "--config" if file is not None else "HEADSTART_CONFIG"
            raise ConfigError(f"{source}: there is no file {path}", param="config")
        return path
    default = folder / DEFAULT_FILE
    return default if default.is_file() else None


def _engine_list(urls: tuple[str, ...] | list[str], model: str | None, origin: Origin) -> Node:
    entries: list[Node] = []
    for url in urls:
        entry = {"url": Node(url, origin)}
        if model is not None:
            models_origin = Origin("flag", "--model", origin.base)
            entry["models"] = Node([Node(model, models_origin)], models_origin)
        entries.append(Node(entry, origin))
    return Node(list(entries), origin)


def _compose(
    tree: Node, flags: Flags, environment: Mapping[str, str], reading: Reading
) -> HeadstartConfig:
    assert isinstance(tree.value, dict)
    entries = tree.value
    refuse_literal(entries, "admin_key", "admin_key")
    check_keys(entries, (*SCALARS, *LISTS, *SECTIONS, "gossip"), "")
    sections: dict[str, Any] = {
        name: read_section(cls, entries.get(name), name, reading) for name, cls in SECTIONS.items()
    }
    listen = _listen(entries.get("listen"), flags, reading)
    admin_key = _admin_key(entries, environment, reading)
    admin = _admin(entries.get("admin"), listen, admin_key, reading)
    data_dir = Path(platformdirs.user_data_dir("headstart", appauthor=False))
    if "data_dir" in entries:
        data_dir = read_scalar(entries["data_dir"], Path, "data_dir", reading)
    drain_s = 30.0
    if "drain_s" in entries:
        drain_s = read_scalar(entries["drain_s"], float, "drain_s", reading)
    workers = 1
    if "workers" in entries:
        workers = read_scalar(entries["workers"], int, "workers", reading)
    engines: tuple[ReplicaConfig, ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    if "engines" in entries:
        engines, sources = read_engine_list(entries["engines"], environment, reading)
    config = HeadstartConfig(
        listen=listen,
        admin=admin,
        workers=workers,
        admin_key=admin_key,
        data_dir=data_dir,
        templates=_templates(entries.get("templates"), reading),
        engines=engines,
        sources=sources,
        gossip=read_gossip(entries.get("gossip"), environment, reading),
        tenants=read_tenants(entries["tenants"], environment, reading)
        if "tenants" in entries
        else (),
        request_log=_request_log(entries.get("request_log"), reading),
        drain_s=drain_s,
        **sections,
    )
    _check_model_flag(config, flags, reading)
    _check_shadow(config, reading)
    check_tls(config.tls, reading)
    return config


def _listen(node: Node | None, flags: Flags, reading: Reading) -> Address:
    address = _DEFAULT_LISTEN if node is None else _address(node, "listen", reading)
    origin = reading.origins.get("listen")
    given = [
        flag
        for flag, value in (("--host", flags.host), ("--port", flags.port))
        if value is not None
    ]
    if given:
        rest = f", else {origin}" if len(given) == 1 and origin is not None else ""
        reading.note("listen", Origin("flag", ", ".join(given) + rest))
    host = address.host if flags.host is None else flags.host
    port = address.port if flags.port is None else flags.port
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"--port: {port} is not a port; use 0 to {_MAX_PORT}", param="listen")
    return parse_address(str(Address(host.strip("[]"), port)))


def _admin(node: Node | None, listen: Address, admin_key: str | None, reading: Reading) -> Address:
    if node is None:
        if listen.port == _MAX_PORT:
            raise ConfigError(
                f"the admin port would be {_MAX_PORT + 1}; set `admin` (--admin HOST:PORT)",
                param="admin",
            )
        reading.note("admin", Origin("default", "the port of listen + 1, on loopback"))
        return Address("127.0.0.1", listen.port + 1 if listen.port else 0)
    admin = _address(node, "admin", reading)
    if not admin.is_loopback and admin_key is None:
        raise ConfigError(
            f"{node.origin}: the admin port {admin} can be reached from other machines and has no "
            f"key; set `admin_key_env` (or {ADMIN_KEY_VARIABLE}), or use a loopback address",
            param="admin_key_env",
        )
    if admin.port != 0 and admin == listen:
        raise ConfigError(
            f"{node.origin}: `admin` and `listen` are both {admin}; give admin a port of its own",
            param="admin",
        )
    return admin


def _address(node: Node, key: str, reading: Reading) -> Address:
    if type(node.value) is int:
        node = Node(str(node.value), node.origin)  # `listen: 8080`
    text = read_text(node, key, reading)
    try:
        return parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"{node.origin}: {error.message}", param=key) from error


def _admin_key(
    entries: Mapping[str, Node], environment: Mapping[str, str], reading: Reading
) -> str | None:
    secret = read_secret(entries, "admin_key", "admin_key", environment, reading)
    if secret is None and environment.get(ADMIN_KEY_VARIABLE, "").strip():
        named = {"admin_key_env": Node(ADMIN_KEY_VARIABLE, Origin("environment"))}
        secret = read_secret(named, "admin_key", "admin_key", environment, Reading())
        reading.note("admin_key", Origin("environment", ADMIN_KEY_VARIABLE))
    return secret


def _templates(node: Node | None, reading: Reading) -> Path | None:
    if node is None or node.value is None:
        return None
    path = read_scalar(node, Path, "templates", reading)
    assert isinstance(path, Path)
    if not path.is_dir():
        raise ConfigError(
            f"{node.origin}: `templates` is {path}, which is no folder", param="templates"
        )
    return path


def _request_log(node: Node | None, reading: Reading) -> LogTarget:
    if node is None:
        return "-"
    if node.value is False:
        node = Node("off", node.origin)
    text = read_text(node, "request_log", reading)
    if text == "off":
        return "off"
    if text in ("-", "stdout"):
        return "-"
    path = read_scalar(node, Path, "request_log", reading)
    assert isinstance(path, Path)
    return path


def _check_model_flag(config: HeadstartConfig, flags: Flags, reading: Reading) -> None:
    if flags.model is not None and config.engines and not flags.engines:
        raise ConfigError(
            f"--model goes with --engine, or with the embedded replica; the engines of "
            f"{reading.origins['engines']} name their models there",
            param="model",
        )


def _check_shadow(config: HeadstartConfig, reading: Reading) -> None:
    """Refuse to ask a policy twice, or beside itself: it would agree with itself."""
    seen = {config.routing.policy}
    for name in config.routing.shadow:
        if name in seen:
            raise ConfigError(
                f"{reading.origins['routing.shadow']}: `routing.shadow` has {name}, which is asked "
                "already; name each policy once, and not the one that acts",
                param="routing.shadow",
            )
        seen.add(name)


def _unused_variables(environment: Mapping[str, str], reading: Reading) -> tuple[str, ...]:
    known = {variable_name(key): key for key in variable_keys()}
    used = " ".join(origin.place for origin in reading.origins.values()).split()
    named = {word.rstrip(",") for word in used}
    return tuple(
        f"the environment variable {name} sets nothing; {nearest(name, known.keys() | _NOT_KEYS)}"
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and name not in known
        and name not in _NOT_KEYS
        and not name.startswith(_TEST_PREFIXES)
        and name not in named
    )


def _unused_queue_keys(config: HeadstartConfig, reading: Reading) -> tuple[str, ...]:
    queue = config.queue
    if queue.max_in_flight is not None:
        return ()
    unused = []
    if queue.order != "fcfs":
        unused.append("queue.order")
    if queue.ttft_objective_s is not None:
        unused.append("queue.ttft_objective_s")
    return tuple(
        f"{reading.origins[key]}: `{key}` does nothing without `queue.max_in_flight`"
        for key in unused
    )
