"""Imports point down only, the pure rooms touch nothing, and no module is everybody's."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import headstart

ROOT = Path(headstart.__file__).parent

LAYERS = (
    ("types", "errors", "clock"),
    ("kv", "prompt", "wire"),
    ("prefix",),
    ("routing",),
    ("engines", "templates", "accounting"),
    ("diagnosis",),
    ("config",),
    ("dashboard", "gateway", "simulator"),
    ("cli",),
)
"""Bottom to top. A room imports from lower layers and from itself, never from a neighbour."""

ROOT_MODULES = ("__init__", "__main__")
"""The package itself gives everybody its version; `python -m headstart` is the command line."""

PURE_ROOMS = ("kv", "prompt", "prefix", "routing", "wire")

WORLD = frozenset(
    {
        *("asyncio", "concurrent", "ctypes", "fcntl", "getpass", "glob", "http", "io", "logging"),
        *("multiprocessing", "os", "pathlib", "platform", "random", "secrets", "select", "shutil"),
        *("signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading"),
        *("time", "urllib", "uuid"),
        *("aiohttp", "aiosqlite", "httpx", "platformdirs", "requests", "rich", "typer", "uvloop"),
        *("zmq",),
    }
)
"""Modules through which code reads or changes something outside its arguments."""

CALLS_TO_THE_WORLD = frozenset({"open", "input", "print", "breakpoint", "exec", "eval"})

MAX_IMPORTERS = 0.6
"""Above this share of all modules, a module has become the place where everything is put."""

EVERYBODYS = frozenset({"headstart", "headstart.types", "headstart.errors", "headstart.clock"})


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """Its first folder, or the file itself at the top."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return parts[0]

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every import, at the top or inside a function, for types or for use, absolute."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}"

    def _base(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        package = self.name.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - (node.level - 1)]
        return ".".join((*package, *([node.module] if node.module else [])))


def load(path: Path) -> Module:
    parts = ("headstart", *path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return Module(".".join(parts), path, ast.parse(path.read_text(encoding="utf-8"), str(path)))


MODULES = tuple(load(path) for path in sorted(ROOT.rglob("*.py")))
NAMES = frozenset(module.name for module in MODULES)
LEVELS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def place(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT.parent)}:{line}"


def imported_module(name: str) -> str | None:
    """The module of ours that an imported name is or comes from."""
    while name and name not in NAMES:
        name = name.rpartition(".")[0]
    return name or None


def layer_faults(module: Module) -> Iterator[str]:
    if module.room in ROOT_MODULES:
        return
    for line, name in module.imports():
        if name == "headstart.__version__" or not name.startswith("headstart."):
            continue
        other = name.split(".")[1]
        if other == module.room:
            continue
        if other not in LEVELS:
            yield f"{place(module, line)}: imports {name}, whose room has no layer"
        elif LEVELS[other] == LEVELS[module.room]:
            yield (
                f"{place(module, line)}: {module.room} imports {name}, its neighbour; move what "
                f"both need down, or pass it in from above"
            )
        elif LEVELS[other] > LEVELS[module.room]:
            yield (
                f"{place(module, line)}: {module.room} imports {name}, which is above it; "
                f"order: {' < '.join('|'.join(rooms) for rooms in LAYERS)}"
            )


def purity_faults(module: Module) -> Iterator[str]:
    for line, name in module.imports():
        if name.split(".")[0] in WORLD and name != "random.Random":
            yield f"{place(module, line)}: {module.room} is pure and imports {name}"
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in CALLS_TO_THE_WORLD
        ):
            yield f"{place(module, node.lineno)}: {module.room} is pure and calls {node.func.id}()"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Random"
            and not node.args
        ):
            yield f"{place(module, node.lineno)}: {module.room} is pure and draws without a seed"


def test_every_room_has_a_layer():
    """A new folder must say where it stands."""
    rooms = {module.room for module in MODULES} - set(ROOT_MODULES)
    assert rooms <= LEVELS.keys(), f"give {rooms - LEVELS.keys()} a place in LAYERS"


def test_imports_point_down():
    """Lazy imports and those for types count as well: they tie rooms together just the same."""
    faults = [fault for module in MODULES for fault in layer_faults(module)]
    assert not faults, "\n" + "\n".join(faults)


def test_pure_rooms_touch_nothing():
    """No sockets, files, environment, logging, clock or threads: `now` and `rng` are arguments.

    A generator of random numbers is pure once it has a seed.
    """
    faults = [
        fault for module in MODULES if module.room in PURE_ROOMS for fault in purity_faults(module)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_no_module_is_imported_by_nearly_all():
    """`utils.py` begins as a convenience and ends as a knot."""
    importers: Counter[str] = Counter()
    for module in MODULES:
        importers.update({imported_module(name) for _line, name in module.imports()} - {None})
    limit = MAX_IMPORTERS * len(MODULES)
    knots = {
        name: count for name, count in importers.items() if count > limit and name not in EVERYBODYS
    }
    assert not knots, f"imported by more than {limit:.0f} of {len(MODULES)} modules: {knots}"


def fake(room: str, source: str) -> Module:
    return Module(f"headstart.{room}.fake", ROOT / room / "fake.py", ast.parse(source))


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("routing", "from headstart.gateway.gateway import Gateway"),
        ("wire", "import headstart.kv.pool"),
        ("accounting", "def f():\n    from headstart.engines import base"),
        ("kv", "from ..engines.base import ReplicaConfig"),
        ("kv", "from headstart import routing"),
        ("cli", "from headstart.nowhere import x"),
    ],
)
def test_the_layer_check_finds_faults(room, source):
    """A checker that never fails checks nothing."""
    assert list(layer_faults(fake(room, source)))


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("gateway", "from headstart.routing.policy import Policy"),
        ("kv", "from .events import BlockStored"),
        ("kv", "from headstart.types import BlockHash\nimport hashlib"),
        ("cli", "from headstart import __version__"),
    ],
)
def test_the_layer_check_lets_good_imports_pass(room, source):
    """Down, inside, and outside the package."""
    assert not list(layer_faults(fake(room, source)))


@pytest.mark.parametrize("source", ["import time", "from os import path", "x = open('f')"])
def test_the_purity_check_finds_faults(source):
    """By import or by call."""
    assert list(purity_faults(fake("kv", source)))
