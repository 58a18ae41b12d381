"""`Sweeper`: one timer for all deadlines."""

import asyncio

from headstart.clock import VirtualClock
from headstart.gateway.sweeper import Sweeper


async def test_targets_are_called_with_the_time_until_it_stops():
    """Again and again, and not after `stop`."""
    clock = VirtualClock()
    seen: list[float] = []
    enough = asyncio.Event()

    def target(now: float) -> None:
        seen.append(now)
        clock.advance(1)
        if len(seen) == 3:
            enough.set()

    sweeper = Sweeper([target], 0.001, clock)
    sweeper.start()
    await enough.wait()
    sweeper.stop()
    sweeper.stop()
    assert seen == [0, 1, 2]


async def test_an_error_in_a_target_does_not_end_the_sweeps():
    """Deadlines of everybody else go on."""
    calls = 0
    enough = asyncio.Event()

    def target(_now: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("once")
        enough.set()

    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    sweeper = Sweeper([target], 0.001, VirtualClock())
    sweeper.start()
    await enough.wait()
    sweeper.stop()
    assert [type(each) for each in told] == [ValueError]
