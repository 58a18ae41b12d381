"""One piece of a campaign in a process of its own, guided by coverage: needs atheris.

The readers of HTTP are written in C and show no coverage. Their naive twins do, and are
instrumented too: a branch of the grammar that is new to the twin is new to the reader.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import atheris

from fuzz.mutation import MAX_BYTES
from fuzz.piece import CASE_LIMIT_S, Finds, PieceResult, options, report
from fuzz.target import Target

with atheris.instrument_imports(
    include=["headstart.wire", "headstart.prompt", "headstart.templates", "fuzz.naive"]
):
    from fuzz.targets import TARGETS


class GuidedPiece:
    """Counts the cases of one run and ends the process after the last.

    Args:
        target: what is checked.
        cases: how many, seeds included.
        finds: gets what breaks a property.
    """

    def __init__(self, target: Target, cases: int, finds: Finds) -> None:
        self._target = target
        self._cases = cases
        self._finds = finds
        self._result = PieceResult(target.name, "atheris")
        self._started = time.monotonic()

    def check(self, data: bytes) -> None:
        """Check one input; the fuzzer goes on after a find."""
        try:
            self._target.check(data)
        except Exception as error:  # noqa: BLE001 -- whatever a case raises is what is looked for
            self._finds.keep(data, error)
        self._result.num_cases += 1
        if self._result.num_cases >= self._cases or self._finds.is_full:
            self._end()

    def _end(self) -> NoReturn:
        self._result.finds = self._finds.names
        report(self._result, self._started)
        os._exit(0)  # libFuzzer has no other way out but a crash


def write_dictionary(path: Path, tokens: tuple[bytes, ...]) -> None:
    """Write tokens in libFuzzer's form."""
    lines = ["".join(f"\\x{byte:02x}" for byte in token) for token in tokens if token]
    path.write_text("".join(f'"{line}"\n' for line in lines), encoding="ascii")


def main() -> None:
    """Run the piece that the command line names."""
    args = options((__doc__ or "").splitlines()[0])
    target = TARGETS[args.target]
    with tempfile.TemporaryDirectory() as folder:
        grown, dictionary = Path(folder, "grown"), Path(folder, "tokens")
        grown.mkdir()
        write_dictionary(dictionary, target.tokens)
        settings = [
            sys.argv[0],
            f"-seed={args.seed or 1}",
            f"-max_len={MAX_BYTES}",
            f"-dict={dictionary}",
            f"-timeout={CASE_LIMIT_S}",
            f"-artifact_prefix={args.finds}/",
            str(grown),  # what is new goes into the first folder
            str(args.corpus / target.name),
        ]
        piece = GuidedPiece(target, args.cases, Finds(args.finds, target.name))
        atheris.Setup(settings, piece.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
