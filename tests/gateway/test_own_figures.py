"""What a process says of its own use of the machine."""

import asyncio
import os

from headstart.gateway.process import process_status


async def test_open_descriptors_are_counted():
    """A leak would show."""
    before = process_status("gateway").num_open_fds
    pipes = [os.pipe() for _ in range(5)]
    after = process_status("gateway").num_open_fds
    for descriptor in (each for pipe in pipes for each in pipe):
        os.close(descriptor)
    assert after - before == 10


async def test_tasks_are_counted():
    """Those that have not ended."""
    before = process_status("gateway").num_tasks
    waiting = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
    assert process_status("gateway").num_tasks - before == 3
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert process_status("gateway").num_tasks == before


async def test_memory_and_time_are_those_of_this_process():
    """In bytes and seconds."""
    status = process_status("worker-1")
    assert status.name == "worker-1"
    assert 5_000_000 < status.resident_bytes < 20_000_000_000
    assert status.cpu_s > 0
