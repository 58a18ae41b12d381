"""Everything that a run counts."""

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.soak.answers import Outcome, Verdict

_BUCKETS_PER_E = 50  # 2 % wide


class Histogram:
    """Latencies in buckets of 2 %, so that millions of them cost nothing."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value_s: float) -> None:
        """Count one."""
        self._counts[math.floor(math.log(max(value_s, 1e-6)) * _BUCKETS_PER_E)] += 1

    def quantile(self, share: float) -> float:
        """Return the value in seconds below which `share` of them lie; 0 if there are none."""
        left = share * self._counts.total()
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return math.exp((bucket + 0.5) / _BUCKETS_PER_E)
        return 0.0


@dataclass(slots=True)
class Tally:
    """Counts of one drive.

    Attributes:
        outcomes: of well-behaved requests, by the fault that they may have felt.
        rude: of the others, by what they did and what came of it.
        violations: reasons.
        latency: of well-behaved requests that no fault touched.
        troubled: of those that one did.
        num_sent: requests handed to a connection.
        num_unanswered: of these, ones whose client saw no response head: they may have left a
            record whose id nobody knows.
        num_held_back: not sent, because too many were open.
        id_file: gets the id of every response, one a line.
    """

    id_file: IO[str]
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    rude: dict[str, Counter[str]] = field(default_factory=dict)
    violations: Counter[str] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)
    troubled: Histogram = field(default_factory=Histogram)
    num_sent: int = 0
    num_unanswered: int = 0
    num_held_back: int = 0

    def note(self, cause: str, verdict: Verdict, latency_s: float) -> None:
        """Count a well-behaved request's outcome."""
        self.outcomes.setdefault(cause, Counter())[verdict.outcome] += 1
        (self.latency if cause == "none" else self.troubled).add(latency_s)
        if verdict.outcome is Outcome.VIOLATION:
            self.violations[f"{verdict.reason} (fault: {cause})"] += 1

    def note_rude(self, manner: str, result: str, *, is_fine: bool) -> None:
        """Count what came of a client that did not behave well."""
        self.rude.setdefault(manner, Counter())[result] += 1
        if not is_fine:
            self.violations[f"{manner}: {result}"] += 1

    def note_id(self, request_id: str) -> None:
        """Remember the id of a response; empty counts as unanswered."""
        if request_id:
            self.id_file.write(f"{request_id}\n")
        else:
            self.num_unanswered += 1

    def total(self, outcome: Outcome) -> int:
        """Return how many well-behaved requests came to `outcome`."""
        return sum(counts[outcome] for counts in self.outcomes.values())


def open_tally(folder: Path, name: str) -> Tally:
    """Return a tally whose ids go into a file of `folder`."""
    return Tally((folder / f"{name}.ids").open("w", encoding="ascii"))
