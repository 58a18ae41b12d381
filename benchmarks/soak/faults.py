"""Which engine fails when, and how: a schedule that a seed decides, and its execution."""

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

KINDS = (
    "kill",  # SIGKILL, and started again
    "freeze",  # SIGSTOP, then SIGCONT
    "reset_head",  # the connection is reset in the middle of the response's head
    "reset_body",  # … of its body or stream
    "half_close",  # the engine ends its side in the middle of a body and reads on
    "malformed",  # what comes back is no HTTP
    "error",  # 500, 502, 503
    "slow",  # a second late
    "silent",  # never answers
)
SIGNALS = frozenset({"kill", "freeze"})
"""Faults of a whole process; of the others a share of the answers is hit."""

QUIET_S = 5.0
"""After its end a fault may still be felt for so long: open requests, checks, a breaker's trial."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One engine's trouble for a while.

    Attributes:
        kind: one of `KINDS`.
        engine: index.
        at_s: since the start of the drive.
        for_s: how long.
        share: of the answers that are hit.
    """

    kind: str
    engine: int
    at_s: float
    for_s: float
    share: float

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.at_s + self.for_s


class Engines(Protocol):
    """What faults are done to (`processes.EngineProcesses`)."""

    def kill(self, index: int) -> None:
        """End the process at once."""
        ...

    def start(self, index: int) -> None:
        """Start it again."""
        ...

    def freeze(self, index: int) -> None:
        """Stop the process where it is."""
        ...

    def thaw(self, index: int) -> None:
        """Let it go on."""
        ...

    def order(self, index: int, fault: str, share: float) -> None:
        """Make a share of its answers fail."""
        ...


def schedule(duration_s: float, num_engines: int, seed: int) -> list[Fault]:
    """Return the faults of a run, by time.

    Every kind comes up equally often; at any time at least one engine is well, and between two
    faults there are some seconds without any, now and then.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    bag: list[str] = []
    at_s = 5.0
    while at_s < duration_s - 20.0:
        bag = bag or rng.sample(KINDS, len(KINDS))
        busy = {fault.engine for fault in faults if fault.end_s + 1.0 > at_s}
        free = [index for index in range(num_engines) if index not in busy]
        if len(free) > 1:
            share = rng.choice((0.1, 0.5, 1.0))
            faults.append(Fault(bag.pop(), rng.choice(free), at_s, rng.uniform(2.0, 8.0), share))
        at_s += rng.choice((2.0, 6.0, 6.0, 20.0))
    return faults


def cause(faults: Iterable[Fault], start_s: float, end_s: float) -> str:
    """Name the fault that a request may have felt: the latest that touches its time; or `none`."""
    touching = [
        fault for fault in faults if fault.at_s <= end_s and fault.end_s + QUIET_S >= start_s
    ]
    return max(touching, key=lambda fault: fault.at_s).kind if touching else "none"


async def inject(faults: Iterable[Fault], engines: Engines, started: float) -> None:
    """Carry the schedule out; `started` is a monotonic reading."""

    async def one(fault: Fault) -> None:
        await asyncio.sleep(started + fault.at_s - time.monotonic())
        _begin(fault, engines)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            _end(fault, engines)

    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(one(fault))


def _begin(fault: Fault, engines: Engines) -> None:
    if fault.kind == "kill":
        engines.kill(fault.engine)
    elif fault.kind == "freeze":
        engines.freeze(fault.engine)
    else:
        engines.order(fault.engine, fault.kind, fault.share)


def _end(fault: Fault, engines: Engines) -> None:
    if fault.kind == "kill":
        engines.start(fault.engine)
    elif fault.kind == "freeze":
        engines.thaw(fault.engine)
    else:
        engines.order(fault.engine, "none", 0.0)
