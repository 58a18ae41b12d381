"""How fast a late gateway learns an engine's past, and how long the event loop is held meanwhile.

    python benchmarks/kv_feed/replay.py [--batches N] [--blocks N]

The publisher is a process of its own, as an engine is. A task measures the processor time between
two of its turns: what a request would have waited on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
from itertools import count
from multiprocessing.connection import Connection
from time import perf_counter, process_time, thread_time

import uvloop
from aiohttp import web

from headstart.clock import SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.embedded.kv_publisher import KvEventPublisher, KvEventsConfig
from headstart.engines.kv_feed.feed import KvFeed
from headstart.engines.kv_feed.replica_feed import FedReplica
from headstart.engines.origin import Origin
from headstart.kv.events import BlockStored
from headstart.prefix.view import PrefixView
from headstart.types import BlockHash, JsonObject, TokenId

BLOCK_SIZE = 16
ANY = "tcp://127.0.0.1:*"


def publish(num_batches: int, num_blocks: int, pipe: Connection) -> None:
    publisher = KvEventPublisher(KvEventsConfig(ANY, ANY, queue_steps=num_batches), SystemClock())
    publisher.start()
    rng, numbers = random.Random(7), count(1)
    for _ in range(num_batches):
        hashes = tuple(BlockHash(next(numbers).to_bytes(16, "big")) for _ in range(num_blocks))
        tokens = tuple(TokenId(rng.randrange(150_000)) for _ in range(num_blocks * BLOCK_SIZE))
        publisher.publish([BlockStored(hashes, None, tokens, BLOCK_SIZE)])
    pipe.send(publisher.sources)
    pipe.recv()
    publisher.close()


async def turns(stop: asyncio.Event) -> list[float]:
    """Return the processor time between each two turns of this task, seconds, shortest first."""
    found, before = [], thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = thread_time()
        found.append(now - before)
        before = now
    return sorted(found)


async def serve(sources: list[JsonObject]) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/kv_event_sources":
            return web.json_response(sources)
        return web.Response(text="")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def measure(sources: list[JsonObject], num_batches: int) -> dict[str, object]:
    runner = await serve(sources)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    view = PrefixView()
    view.add_replica(0, "r0")
    feed = KvFeed(view)
    origin = Origin(ReplicaConfig("r0", url, "vllm"), strips_credentials=False)
    stop = asyncio.Event()
    watching = asyncio.create_task(turns(stop))
    await asyncio.sleep(0.2)
    feed.start([FedReplica("r0", 0, "vllm", origin)])

    def last_seq() -> int | None:
        (replica,) = feed.statistics()
        return replica.streams[0].last_seq if replica.streams else None

    while last_seq() is None:
        await asyncio.sleep(0)
    began, began_cpu = perf_counter(), process_time()
    while last_seq() != num_batches - 1:
        await asyncio.sleep(0.001)
    wall_s, cpu_s = perf_counter() - began, process_time() - began_cpu
    stop.set()
    found = await watching
    blocks = feed.statistics()[0].streams[0].blocks
    await feed.close()
    await runner.cleanup()
    return {
        "batches": num_batches,
        "blocks": blocks,
        "seconds": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "blocks_per_cpu_s": round(blocks / cpu_s),
        "turns": len(found),
        "longest_turns_ms": [round(each * 1000, 2) for each in found[-3:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=8, help="per batch")
    flags = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    arguments = (flags.batches, flags.blocks, theirs)
    process = multiprocessing.Process(target=publish, args=arguments)
    process.start()
    sources = ours.recv()
    print(json.dumps(uvloop.run(measure(sources, flags.batches))))
    ours.send(None)
    process.join()


if __name__ == "__main__":
    main()
