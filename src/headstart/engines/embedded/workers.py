"""A few threads that share out numpy work, because a BLAS library's own threads do not share.

OpenBLAS threads wait for each other by spinning. Alone on the machine that is quick; as soon as
another process wants one of the cores, each product waits for a thread that is not running
(measured on 2 cores with one busy neighbour: products with 2 BLAS threads took 10 times as long
as with one). A gateway, an engine and a client on one laptop are such neighbours. So BLAS runs on
one thread, and these threads, which sleep while they wait and take the next piece of work when
they are done with one, run side by side; numpy lets go of the interpreter's lock while it computes.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
import threadpoolctl  # type: ignore[import-untyped]

from headstart.engines.embedded.gguf import FloatArray

Task = Callable[[], object]

_MIN_PRODUCTS: Final = 1 << 23
"""Smaller products (in multiplications) take less time than waking a thread does."""


class Workers:
    """Threads that run tasks together with the caller.

    They end when the object is no longer referenced. To be used by one thread at a time; with
    `num_threads` 1 there is only the caller, and any number of threads may use the object.

    Args:
        num_threads: the caller included, >= 1; None: the machine's physical cores.

    Mutates: the process: BLAS is limited to one thread from here on.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        threadpoolctl.threadpool_limits(limits=1, user_api="blas")
        self.num_threads = num_threads or physical_cores()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._inboxes = [SimpleQueue[deque[Task] | None]() for _ in range(self.num_threads - 1)]
        for inbox in self._inboxes:
            # The thread knows only the queues, so that it does not keep this object alive.
            threading.Thread(
                target=_work, args=(inbox, self._done), name="headstart-math", daemon=True
            ).start()
            weakref.finalize(self, inbox.put, None)

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, in any order, side by side; the caller takes part.

        Raises:
            Whatever a task raises, after all have ended.
        """
        pending = deque(tasks)
        helpers = self._inboxes[: len(tasks) - 1]
        for inbox in helpers:
            inbox.put(pending)
        failures = [_drain(pending), *(self._done.get() for _ in helpers)]
        for failure in failures:
            if failure is not None:
                raise failure

    def matmul(self, x: FloatArray, w: FloatArray) -> FloatArray:
        """Multiply few rows by a large matrix, each thread a part of its columns.

        Args:
            x: [T, K].
            w: [K, N], rows or columns contiguous.

        Returns:
            [T, N].
        """
        if self.num_threads == 1 or len(x) * w.size < _MIN_PRODUCTS:
            return np.matmul(x, w)  # type: ignore[no-any-return]
        out: FloatArray = np.empty((len(x), w.shape[1]), np.float32)

        def part(columns: slice) -> Task:
            return lambda: np.matmul(x, w[:, columns], out=out[:, columns])

        self.run([part(columns) for columns in self._shares(w.shape[1])])
        return out

    def sum_of_parts(self, part: Callable[[slice], FloatArray], num_columns: int) -> FloatArray:
        """Add up what `part` returns for slices that make up `num_columns`, one per thread."""
        if self.num_threads == 1:
            return part(slice(0, num_columns))
        shares = self._shares(num_columns)
        results: list[FloatArray | None] = [None] * len(shares)

        def task(i: int) -> Task:
            return lambda: results.__setitem__(i, part(shares[i]))

        self.run([task(i) for i in range(len(shares))])
        return sum(results[1:], start=results[0])  # type: ignore[arg-type]

    def _shares(self, num_columns: int) -> list[slice]:
        width = -(-num_columns // self.num_threads)
        return [slice(a, min(a + width, num_columns)) for a in range(0, num_columns, width)]


def physical_cores() -> int:
    """Count the cores that this process may use, each once however many threads it has."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return max(1, len({_siblings(cpu) for cpu in os.sched_getaffinity(0)}))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _work(
    inbox: "SimpleQueue[deque[Task] | None]", done: "SimpleQueue[BaseException | None]"
) -> None:
    while (pending := inbox.get()) is not None:
        done.put(_drain(pending))


def _drain(pending: deque[Task]) -> BaseException | None:
    """Run tasks until none is left; returns the first failure, after which it takes no more."""
    try:
        while True:
            try:
                task = pending.popleft()
            except IndexError:
                return None
            task()
    except BaseException as failure:  # noqa: BLE001 - handed to the caller of `run`
        pending.clear()
        return failure
