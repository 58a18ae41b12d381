"""The report of a run: checks that pass or fail, and tables for people."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.soak.answers import Outcome
from benchmarks.soak.records import RecordCheck
from benchmarks.soak.sampling import Samples
from benchmarks.soak.tally import Tally
from benchmarks.soak.trend import Trend

# By how much a figure may waver in the second half: a share of it, and an absolute part.
_ROOM = {"memory": (0.05, 8 * 1024 * 1024), "other descriptors": (0.1, 16.0), "tasks": (0.1, 16.0)}
# At rest after the drive, against at rest before it.
_REST_ROOM = {"connections": 8.0, "other descriptors": 8.0, "tasks": 8.0}
_OUTCOMES = (Outcome.WHOLE, Outcome.ERROR, Outcome.ERROR_EVENT, Outcome.CUT, Outcome.VIOLATION)

Figures = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to hold."""

    name: str
    is_passed: bool
    detail: str


@dataclass(slots=True)
class Report:
    """Everything that is told of a run, as JSON has it.

    Attributes:
        setting: what was asked for, and the machine.
        capacity: requests per second at each number of open requests, and the rate of the drive.
        outcomes: of well-behaved requests, by the fault that they may have felt.
        rude: of the other clients, by manner.
        latency_ms: quantiles of requests that no fault touched, and of those that one did.
        counts: everything else that was counted.
        trends: by process and figure.
        series: their samples, a hundred or two of them, with `seconds` since the start.
        checks: what had to hold.
    """

    setting: dict[str, object] = field(default_factory=dict)
    capacity: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    rude: dict[str, dict[str, int]] = field(default_factory=dict)
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    counts: dict[str, object] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def is_passed(self) -> bool:
        """Every check holds."""
        return all(check.is_passed for check in self.checks)


def latencies(tally: Tally) -> dict[str, dict[str, float]]:
    """Return quantiles in milliseconds."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {
        name: {label: histogram.quantile(share) * 1000 for label, share in quantiles.items()}
        for name, histogram in (("no fault", tally.latency), ("under a fault", tally.troubled))
    }


def answer_checks(tally: Tally) -> list[Check]:
    """Return what has to hold of the answers."""
    unprovoked = tally.outcomes.get("none", Counter())
    num_failed = unprovoked.total() - unprovoked[Outcome.WHOLE]
    reasons = "; ".join(f"{count} × {reason}" for reason, count in tally.violations.most_common(5))
    return [
        Check("every request has a whole answer or a failure in form", not reasons, reasons),
        Check(
            "no failure without a fault",
            num_failed == 0,
            f"{num_failed} of {unprovoked.total()}: {_words(unprovoked)}",
        ),
        Check(
            "the load was sent",
            tally.num_held_back <= tally.num_sent / 100,
            f"{tally.num_held_back} held back of {tally.num_sent}",
        ),
    ]


def record_checks(found: RecordCheck, tally: Tally) -> list[Check]:
    """Return what has to hold of the records."""
    return [
        Check(
            "every answered request has its record",
            found.num_missing == 0,
            f"{found.num_missing} of {found.num_seen} missing",
        ),
        Check("no record twice", found.num_repeated == 0, f"{found.num_repeated} repeated"),
        Check(
            "no record of a request that was not sent",
            found.num_unseen <= tally.num_unanswered,
            f"{found.num_unseen} records without an answer, {tally.num_unanswered} requests whose "
            "clients saw none",
        ),
    ]


def growth_checks(samples: Samples) -> list[Check]:
    """Return what has to hold of memory, descriptors and tasks during the drive."""
    checks = []
    for (process, figure), found in samples.trends().items():
        if figure not in _ROOM:
            continue
        share, least = _ROOM[figure]
        room = max(share * found.first, least)
        checks.append(
            Check(
                f"{process}: no growth of {figure}",
                not found.grows(room, samples.half_s),
                f"{_amount(figure, found.first)} → {_amount(figure, found.last)}, "
                f"{_amount(figure, found.slope_per_hour)} per hour",
            )
        )
    return checks


def rest_checks(before: Figures, after: Figures) -> list[Check]:
    """Return what has to hold at rest, before the drive and after it."""
    checks = []
    for (process, figure), rest in before.items():
        if figure not in _REST_ROOM:
            continue
        now = after.get((process, figure), 0.0)
        checks.append(
            Check(
                f"{process}: {figure} at rest are what they were",
                now <= rest + _REST_ROOM[figure],
                f"{rest:.0f} → {now:.0f}",
            )
        )
    return checks


def render(report: Report) -> str:
    """Write the report for people."""
    lines = [f"{key}: {value}" for key, value in report.setting.items()]
    lines += ["", "capacity"]
    lines += [f"  {name:24} {rate:8.0f} requests/s" for name, rate in report.capacity.items()]
    lines += ["", f"{'fault':12} " + "".join(f"{outcome:>13}" for outcome in _OUTCOMES)]
    for cause, counts in sorted(report.outcomes.items()):
        row = "".join(f"{counts.get(outcome, 0):13,}" for outcome in _OUTCOMES)
        lines.append(f"{cause:12} {row}")
    lines += ["", "clients that do not behave well"]
    lines += [f"  {manner:24} {_words(counts)}" for manner, counts in sorted(report.rude.items())]
    lines += ["", f"{'latency, ms':14} {'p50':>9} {'p90':>9} {'p99':>9} {'p99.9':>9}"]
    for name, quantiles in report.latency_ms.items():
        lines.append(f"{name:14} " + " ".join(f"{value:9.1f}" for value in quantiles.values()))
    lines += ["", *(f"{name}: {value}" for name, value in report.counts.items()), ""]
    for check in report.checks:
        mark = "ok  " if check.is_passed else "FAIL"
        lines.append(f"{mark} {check.name}" + (f": {check.detail}" if check.detail else ""))
    return "\n".join(lines)


def _amount(figure: str, value: float) -> str:
    return f"{value / 2**20:.1f} MB" if figure == "memory" else f"{value:.0f}"


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
