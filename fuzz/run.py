"""A fuzzing campaign: so many cases over all targets, in pieces, repeatable by its seed.

    python -m fuzz.run --cases 10_000_000 [--jobs 2] [--seed 1] [--target http_request …]

Prints cases, finds and time of each target; exit status 1 if anything was found. Inputs that broke
a property lie in the folder of finds, each with its traceback. With atheris installed (the extra
`fuzz`) every other piece is guided by coverage; without it our own engine makes all of them.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from zlib import crc32

from fuzz.piece import PieceResult
from fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz" / "corpus"
_CASES_PER_PIECE = 200_000
_LIVE_CASES_PER_PIECE = 10_000
_ENGINES = {"mutation": "fuzz.worker", "atheris": "fuzz.guided"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a campaign that one process does."""

    target: str
    engine: str
    cases: int
    seed: int


def plan(names: Sequence[str], cases: int, seed: int, *, is_guided: bool) -> list[Piece]:
    """Divide a campaign into pieces.

    Args:
        names: targets, which get their shares.
        cases: in all.
        seed: decides the pieces' seeds, and so every input of the mutation engine.
        is_guided: let atheris have every other piece of the targets that are not live.
    """
    total = sum(TARGETS[name].share for name in names)
    pieces = []
    for name in names:
        target = TARGETS[name]
        left = max(1, round(cases * target.share / total))
        size = _LIVE_CASES_PER_PIECE if target.is_live else _CASES_PER_PIECE
        for index in range((left + size - 1) // size):
            engine = "atheris" if is_guided and not target.is_live and index % 2 else "mutation"
            part = min(size, left - index * size)
            pieces.append(Piece(name, engine, part, crc32(f"{seed}/{name}/{index}".encode())))
    # Targets take turns, so that a campaign that is cut short has seen all of them.
    return sorted(pieces, key=lambda piece: piece.seed)


def run_piece(piece: Piece, finds: Path) -> PieceResult:
    """Run one piece in a process of its own; a process that ends by itself is a find too."""
    command = [sys.executable, "-m", _ENGINES[piece.engine], "--target", piece.target]
    command += ["--cases", str(piece.cases), "--seed", str(piece.seed)]
    command += ["--corpus", str(CORPUS), "--finds", str(finds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return PieceResult(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        name = f"crash-{piece.seed:08x}.txt"
        told = f"{piece} ended with status {done.returncode}.\n\n{done.stderr}"
        (finds / name).write_text(told, encoding="utf-8")
        return PieceResult(piece.target, piece.engine, finds=[name])


def run_all(pieces: Sequence[Piece], jobs: int, finds: Path) -> Iterator[PieceResult]:
    """Run pieces, `jobs` at a time, and yield their results as they come."""
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run_piece, piece, finds) for piece in pieces]
        for done in as_completed(running):
            yield done.result()


def totals(results: Sequence[PieceResult]) -> list[PieceResult]:
    """Add the pieces up by target and engine."""
    sums: dict[tuple[str, str], PieceResult] = {}
    for result in results:
        key = (result.target, result.engine)
        total = sums.setdefault(key, PieceResult(*key))
        total.num_cases += result.num_cases
        total.num_kinds = max(total.num_kinds, result.num_kinds)
        total.finds += result.finds
        total.elapsed_s += result.elapsed_s
        total.cpu_s += result.cpu_s
        total.peak_mb = max(total.peak_mb, result.peak_mb)
    order = list(TARGETS)
    return sorted(sums.values(), key=lambda total: (order.index(total.target), total.engine))


def table(rows: Sequence[PieceResult], elapsed_s: float) -> str:
    """Write the totals for people."""
    lines = [f"{'target':14} {'engine':9} {'cases':>11} {'finds':>5} {'CPU s':>7} {'peak MB':>8}"]
    lines += [
        f"{row.target:14} {row.engine:9} {row.num_cases:11,} {len(row.finds):5} "
        f"{row.cpu_s:7.0f} {row.peak_mb:8.0f}"
        for row in rows
    ]
    cases = sum(row.num_cases for row in rows)
    finds = sum(len(row.finds) for row in rows)
    rate = cases / max(elapsed_s, 1e-9)
    lines.append(f"{cases:,} cases in {elapsed_s:.0f} s ({rate:,.0f} per second), {finds} finds")
    return "\n".join(lines)


def main() -> int:
    """Run the campaign that the command line describes; return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cases", type=int, default=100_000, help="in all; default 100000")
    options.add_argument("--target", action="append", choices=TARGETS, help="default: all")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options.add_argument("--engine", choices=("auto", "mutation"), default="auto")
    options.add_argument("--finds", type=Path, default=ROOT / "build" / "fuzz-finds")
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    is_guided = args.engine == "auto" and importlib.util.find_spec("atheris") is not None
    pieces = plan(args.target or list(TARGETS), args.cases, args.seed, is_guided=is_guided)
    args.finds.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    results = []
    for number, result in enumerate(run_all(pieces, args.jobs, args.finds), 1):
        results.append(result)
        found = f", found {', '.join(result.finds)}" if result.finds else ""
        print(f"{number}/{len(pieces)} {result.target} {result.engine}{found}", file=sys.stderr)
    rows = totals(results)
    elapsed_s = time.monotonic() - started
    print(json.dumps([asdict(row) for row in rows]) if args.json else table(rows, elapsed_s))
    return 1 if any(row.finds for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
