"""One piece of a campaign in a process of its own, by our own mutation engine.

Prints one JSON line (`PieceResult`) for `run`. A case that raises anything is a find: it is kept
in the folder of finds, and the piece goes on.
"""

import random
import signal
import time
from pathlib import Path
from types import FrameType

from fuzz.growth import check_growth
from fuzz.mutation import Mutator
from fuzz.piece import CASE_LIMIT_S, Finds, PieceResult, corpus_of, options, report
from fuzz.target import Target
from fuzz.targets import TARGETS

_GROWTH_EVERY = 20_000
_ALARM_EVERY = 256


class CaseTooSlow(Exception):
    """A case, or the 256 around it, took longer than `CASE_LIMIT_S`."""


def run_piece(target: Target, cases: int, seed: int, corpus: Path, finds: Finds) -> PieceResult:
    """Check `cases` inputs that the mutation engine makes of the corpus.

    Args:
        target: what is checked.
        cases: how many.
        seed: decides every input.
        corpus: has a folder per target.
        finds: gets what breaks a property.
    """
    rng = random.Random(seed)
    mutator = Mutator(rng, corpus_of(corpus, target.name), target.tokens)
    result = PieceResult(target.name, "mutation")
    for index in range(cases):
        if index % _ALARM_EVERY == 0:
            signal.alarm(CASE_LIMIT_S)
        data = mutator.next()
        try:
            mutator.note(data, target.check(data))
            if index % _GROWTH_EVERY == 0:
                check_growth(target, data, rng)
        except Exception as error:  # noqa: BLE001 -- whatever a case raises is what is looked for
            finds.keep(data, error)
            if finds.is_full:
                break
        result.num_cases += 1
    signal.alarm(0)
    result.finds = finds.names
    result.num_kinds = mutator.num_kinds
    return result


def _give_up(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  signal's form
    raise CaseTooSlow(f"{_ALARM_EVERY} cases took more than {CASE_LIMIT_S} s.")


def main() -> None:
    """Run the piece that the command line names."""
    args = options((__doc__ or "").splitlines()[0])
    signal.signal(signal.SIGALRM, _give_up)
    started = time.monotonic()
    finds = Finds(args.finds, args.target)
    report(run_piece(TARGETS[args.target], args.cases, args.seed, args.corpus, finds), started)


if __name__ == "__main__":
    main()
