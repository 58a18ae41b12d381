"""What every process that serves does for itself: set itself up, run its loop, hear signals."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while the event loop waits for it. The standard 5 ms
would show in the data path's 99th percentile whenever records are written."""

_GC_THRESHOLDS = (20_000, 20, 20)
"""New objects before the collector looks at them, and after how many looks at older ones. What a
request makes is freed by its count of references, so each look finds nothing and makes some request
wait: with the standard (700, 10, 10) and all modules to look through, for tens of milliseconds."""


def configure_process(name: str = "") -> None:
    """Set up what is the process's own: its messages and its threads' turns.

    Args:
        name: begins its messages, where there are several processes.
    """
    prefix = f"headstart: {name}: " if name else "headstart: "
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=f"{prefix}%(message)s")
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def settle_memory() -> None:
    """Tell the collector of cycles that what there is now stays; called once all has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def run_on_uvloop(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` on an event loop of uvloop; returns its result."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT, and `hurry` at the second."""

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


async def first(work: "asyncio.Future[Any]", *events: asyncio.Event) -> bool:
    """Return True once `work` is done, False if one of the events comes before."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait((work, *waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    return work.done()
