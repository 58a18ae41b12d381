"""Looks at the gateway once a second through its own metrics."""

import asyncio
import re
import time
from dataclasses import dataclass, field

from benchmarks.soak.processes import GatewayProcess
from benchmarks.soak.trend import Trend, trend

_PROCESS = re.compile(r'headstart_process_(\w+)\{process="([^"]+)"\} (\S+)')
_FIGURES = {"resident_memory_bytes": "memory", "event_loop_tasks": "tasks"}
_CONNECTIONS = ("headstart_client_connections", "headstart_replica_connections")

_INTERVAL_S = 1.0
_MAX_POINTS = 200


def process_figures(text: str) -> dict[tuple[str, str], float]:
    """Return what must not grow by (process, figure), from the text of `/metrics`.

    Connections come and go with the load, so of the descriptors those count that are none.
    """
    figures = {
        (process, _FIGURES[name]): float(value)
        for name, process, value in _PROCESS.findall(text)
        if name in _FIGURES
    }
    num_connections = sum(counter(text, name) for name in _CONNECTIONS)
    num_fds = counter(text, "headstart_process_open_fds")
    figures["all processes", "other descriptors"] = num_fds - num_connections
    figures["all processes", "connections"] = num_connections
    return figures


def counter(text: str, name: str) -> float:
    """Return the sum of a family's samples in the text of `/metrics`."""
    pattern = re.compile(rf"^{name}(?:\{{.*\}})? (\S+)$", re.MULTILINE)
    return sum(float(value) for value in pattern.findall(text))


@dataclass(slots=True)
class Samples:
    """Figures over time.

    Attributes:
        times_s: monotonic.
        values: by process and figure, one for each time.
    """

    times_s: list[float] = field(default_factory=list)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, now: float, figures: dict[tuple[str, str], float]) -> None:
        """Take one look; processes that come or go meanwhile are left out from then on."""
        if self.values and figures.keys() != self.values.keys():
            return
        self.times_s.append(now)
        for key, value in figures.items():
            self.values.setdefault(key, []).append(value)

    def trends(self) -> dict[tuple[str, str], Trend]:
        """Return what each figure did."""
        return {key: trend(self.times_s, values) for key, values in self.values.items()}

    def series(self) -> dict[str, list[float]]:
        """Return some of the samples, evenly taken, for a report."""
        step = len(self.times_s) // _MAX_POINTS + 1
        start = self.times_s[0]
        points = {" ".join(key): values[::step] for key, values in self.values.items()}
        return {"seconds": [round(at - start, 1) for at in self.times_s[::step]], **points}

    @property
    def half_s(self) -> float:
        """Length of the second half."""
        return (self.times_s[-1] - self.times_s[0]) / 2


async def sample(gateway: GatewayProcess, samples: Samples) -> None:
    """Look until cancelled."""
    while True:
        text = await asyncio.to_thread(gateway.metrics)
        samples.add(time.monotonic(), process_figures(text))
        await asyncio.sleep(_INTERVAL_S)
