"""What gossip costs a request, how large it is, and how old it is when it arrives.

    python benchmarks/routing/gossip.py

`on the request's path` is what the router's four calls add to it, the best of many short runs.
`told` and `heard` are the CPU that one process spends on each request of its own and on each of
another process, in batches of as many requests as 5 ms bring at the given rate; `heard` is with
decoding, load and the approximate index. Age is measured between two processes, from the dispatch
in one to its application in the other; both are on one machine and share its monotonic clock.
"""

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path

import uvloop

from headstart.clock import SystemClock
from headstart.gateway.gossip.inbox import Inbox
from headstart.gateway.gossip.links import Links, socket_folder, worker_links
from headstart.gateway.gossip.mesh import Gossip
from headstart.gateway.gossip.plan import GossipPlan
from headstart.prefix.config import PrefixConfig
from headstart.prefix.view import PrefixView
from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.dispatch import Dispatch
from headstart.routing.gossip.index import RemoteIndex
from headstart.routing.gossip.ledger import RemoteLedger
from headstart.routing.gossip.outbox import Outbox
from headstart.routing.gossip.roster import Roster
from headstart.routing.load import Work
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica
from headstart.wire.gossip import encode_gossip

BATCH_S = 0.005
NUM_REPLICAS = 8
RATES = (200, 2000)
SECONDS = 5.0
BLOCKS = {"8 KB": 8, "32 KB": 33, "400 KB": 400}
RUNS = 30


def prompt_of(number: int, num_blocks: int) -> PromptKeys:
    """Return a prompt that shares all but its last block with most others."""
    shared = [index.to_bytes(16, "little") for index in range(num_blocks - 1)]
    keys = [*shared, b"last" + number.to_bytes(12, "little")]
    return PromptKeys(keys, [1024 * (i + 1) for i in range(num_blocks)], 1024 * num_blocks + 100)


class Process:
    """One process's pure half."""

    def __init__(self, name: str) -> None:
        self.replicas = [Replica(f"r{index}", slot=index) for index in range(NUM_REPLICAS)]
        self.roster = Roster()
        for index, replica in enumerate(self.replicas):
            self.roster.add(replica, index.to_bytes(8, "little"))
        self.outbox = Outbox(name, 1, self.roster, lambda: None)
        self.number = 0

    def dispatch(self, num_blocks: int, tokens: TokenPrompt | None = None) -> Dispatch:
        self.number += 1
        replica = self.replicas[self.number % NUM_REPLICAS]
        prompt = prompt_of(self.number, num_blocks)
        request = RoutingRequest("m", prompt, tokens, input_tokens=256 * num_blocks)
        request.matched_tokens = [256 * (num_blocks - 1)]
        return Dispatch(request, (replica,), Decision(replica, "p", "r"), 0)

    def live(self, dispatch: Dispatch) -> None:
        """All of a request's calls."""
        outbox = self.outbox
        outbox.sent(dispatch)
        dispatch.first_at = 0.0
        outbox.first_token(dispatch)
        dispatch.is_answered = True
        outbox.answered(dispatch)
        outbox.ended(dispatch)


def on_path() -> float:
    """Microseconds a request of the router's four calls."""
    num, process = 500, Process("a/0")
    dispatches = [process.dispatch(1) for _ in range(num)]

    def run() -> None:
        for dispatch in dispatches:
            process.live(dispatch)

    best = []
    for _ in range(RUNS):
        process.outbox.take_changes()
        start = time.perf_counter()
        run()
        best.append(time.perf_counter() - start)
    return 1e6 * min(best) / num


async def told_and_heard(num_blocks: int, per_batch: int) -> tuple[float, float, float]:
    """Microseconds to tell and to hear a request, and its bytes."""
    told, heard, sizes = [], [], []
    process = Process("a/0")
    hearing = Process("b/0")
    view = PrefixView(PrefixConfig())
    for replica in hearing.replicas:
        view.add_replica(replica.slot, replica.name)
    index = RemoteIndex(view, lambda its_id: int.from_bytes(its_id, "little"))
    ledger = RemoteLedger("b/0")
    inbox = Inbox(ledger, index, hearing.roster, SystemClock())
    for _ in range(RUNS * 4):
        for dispatch in [process.dispatch(num_blocks) for _ in range(per_batch)]:
            dispatch.input_tokens, dispatch.cached_tokens = 256 * num_blocks, 256 * (num_blocks - 1)
            dispatch.output_tokens = 10
            process.live(dispatch)
        start = time.perf_counter()
        message = encode_gossip(process.outbox.take_changes())
        told.append(time.perf_counter() - start)
        sizes.append(len(message))
        start = time.perf_counter()
        inbox.take(message)
        while inbox._queue:
            inbox._work()
        heard.append(time.perf_counter() - start)
    return 1e6 * min(told) / per_batch, 1e6 * min(heard) / per_batch, sizes[-1] / per_batch


class Stopwatch:
    """An index that notes how old what it is told is."""

    def __init__(self) -> None:
        self.ages_s: list[float] = []

    def dispatched_elsewhere(self, _slot: int, prompt: PromptKeys, *_: object) -> None:
        self.ages_s.append((time.monotonic_ns() // 1000 - prompt.num_bytes) % 2**31 / 1e6)

    def first_token(self, *_: object) -> None: ...

    def answered(self, *_: object) -> None: ...

    def failed(self, *_: object) -> None: ...


def gossip_of(folder: Path, index: int, view: object) -> tuple[Gossip, list[Replica]]:
    links: Links = worker_links(folder, index, 2, has_peers=False)
    gossip = Gossip(GossipPlan(f"h/{index}", links, BATCH_S, 2.0), view)
    replicas = [Replica(f"r{number}", slot=number) for number in range(NUM_REPLICAS)]
    for replica in replicas:
        gossip.add_replica(replica, "http://10.0.0.1:8000")
    return gossip, replicas


async def speak(folder: Path, rate: float, num_blocks: int) -> None:
    """Send requests at random times, each with the time in it."""
    gossip, replicas = gossip_of(folder, 1, Stopwatch())
    gossip.start()
    while not gossip.statistics().num_peers:
        await asyncio.sleep(0.01)
    rng, observer = random.Random(1), gossip.observer
    due = time.monotonic()
    end, number = due + SECONDS, 0
    while due < end:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        number += 1
        prompt = prompt_of(number, num_blocks)
        prompt = PromptKeys(prompt.keys, prompt.ends, time.monotonic_ns() // 1000 % 2**31)
        replica = rng.choice(replicas)
        request = RoutingRequest("m", prompt, input_tokens=1)
        dispatch = Dispatch(request, (replica,), Decision(replica, "p", "r"), 0)
        dispatch.work = Work(1, 1.0, 1, is_stream=True)
        replica.load.begin(dispatch, dispatch.work, 0.0)
        observer.sent(dispatch)
        replica.load.first_token(dispatch, 0.0)
        observer.first_token(dispatch)
        replica.load.end(dispatch, dispatch.work, 0.0)
        observer.ended(dispatch)
    await asyncio.sleep(0.1)
    await gossip.close()


async def listen(rate: float, num_blocks: int) -> list[float]:
    """Return the ages of what another process says, in ms."""
    with socket_folder() as folder:
        watch = Stopwatch()
        gossip, _ = gossip_of(folder, 0, watch)
        gossip.start()
        arguments = ["--speak", str(folder), str(rate), str(num_blocks)]
        speaker = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments)
        assert await speaker.wait() == 0
        assert gossip.statistics().num_lost == 0
        await gossip.close()
        return sorted(1e3 * age for age in watch.ages_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--speak", nargs=3)
    arguments = parser.parse_args()
    if arguments.speak:
        folder, rate, num_blocks = arguments.speak
        uvloop.run(speak(Path(folder), float(rate), int(num_blocks)))
        return
    print(f"on the request's path: {on_path():.2f} us a request")
    print("\nprompt   rate/s   told us   heard us   bytes a request")
    for name, num_blocks in BLOCKS.items():
        for rate in RATES:
            per_batch = max(1, round(rate * BATCH_S))
            told, heard, size = uvloop.run(told_and_heard(num_blocks, per_batch))
            print(f"{name:8} {rate:6} {told:9.1f} {heard:10.1f} {size:17.0f}")
    print("\nage on arrival, ms, 32 KB prompts\nrate/s     p50    p99    max     requests")
    for rate in RATES:
        ages = uvloop.run(listen(rate, BLOCKS["32 KB"]))
        p50, p99 = ages[len(ages) // 2], ages[len(ages) * 99 // 100]
        print(f"{rate:6} {p50:7.1f} {p99:6.1f} {ages[-1]:6.1f} {len(ages):12}")


if __name__ == "__main__":
    main()
