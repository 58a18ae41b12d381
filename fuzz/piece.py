"""What the two kinds of worker share: a piece's result, and how a find is kept."""

import argparse
import json
import resource
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

CASE_LIMIT_S = 20
"""A case that takes longer is a find."""

MAX_PLACES = 20
"""After so many different finds a piece ends: the target needs a person."""


@dataclass(slots=True)
class PieceResult:
    """What a piece came to.

    Attributes:
        target: its name.
        engine: `mutation` or `atheris`.
        num_cases: inputs checked.
        num_kinds: kinds of input that the target told apart; 0 if it was not asked.
        finds: file names of the inputs that broke a property.
        elapsed_s: wall clock.
        cpu_s: of the process.
        peak_mb: its largest resident memory.
    """

    target: str
    engine: str
    num_cases: int = 0
    num_kinds: int = 0
    finds: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0


class Finds:
    """Keeps one input of each kind of failure.

    Args:
        folder: gets a folder per target.
        target: its name.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder / target
        self._places: set[str] = set()
        self.names: list[str] = []

    @property
    def is_full(self) -> bool:
        """There are so many that going on makes no sense."""
        return len(self._places) >= MAX_PLACES

    def keep(self, data: bytes, error: BaseException) -> None:
        """Write the input down, and beside it what it did, unless the place is known."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {frame.filename}:{frame.lineno}"
        if place in self._places:
            return
        self._places.add(place)
        name = f"find-{sha256(data).hexdigest()[:12]}"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_bytes(data)
        report = "".join(traceback.format_exception(error))
        (self._folder / f"{name}.txt").write_text(f"{data!r}\n\n{report}", encoding="utf-8")
        self.names.append(name)


def options(description: str) -> argparse.Namespace:
    """Read a worker's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", required=True)
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--finds", type=Path, required=True)
    return parser.parse_args()


def corpus_of(folder: Path, target: str) -> list[bytes]:
    """Return a target's seeds, in the order of their names."""
    return [path.read_bytes() for path in sorted((folder / target).iterdir())]


def report(result: PieceResult, started: float) -> None:
    """Complete `result` and print it for `run`; `started` is a monotonic reading."""
    result.elapsed_s = round(time.monotonic() - started, 3)
    result.cpu_s = round(time.process_time(), 3)
    result.peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    json.dump(asdict(result), sys.stdout)
    sys.stdout.flush()
