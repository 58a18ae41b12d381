"""How evenly several processes share a port, and what a new connection waits for it.

    python benchmarks/overhead/port_sharing.py [--processes 2,4] [--rounds 15]

Three ways: `reuseport`, a socket for each process, among which the kernel chooses; `shared`, one
socket that all accept from; `deferring`, the same with `gateway.acceptor`, which is what headstart
does. Each connection asks once and stays open until all of a round are there. `busiest` is the
number of connections of the process that got most, over an even share: median and worst round.
Each answer takes 60 µs of processor time, about what a request costs headstart. Needs Linux.
"""

import argparse
import asyncio
import mmap
import os
import signal
import socket
import statistics
import struct
import time
from collections import Counter

import uvloop

from headstart.cli.workers.memory import Board
from headstart.gateway.acceptor import Acceptor

WORK_S = 60e-6
LOADS = {"64 at once": (64, True), "64 in turn": (64, False), "16 at once": (16, True)}


class Answer(asyncio.Protocol):
    """Answers each piece with the process's id."""

    def __init__(self, held: "set[Answer]") -> None:
        self._held = held

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._held.add(self)

    def data_received(self, _data: bytes) -> None:
        end = time.perf_counter() + WORK_S
        while time.perf_counter() < end:
            pass
        self._transport.write(struct.pack("!I", os.getpid()))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._held.discard(self)


async def serve(way: str, listener: socket.socket, board: Board) -> None:
    held: set[Answer] = set()
    if way == "deferring":
        acceptor = Acceptor(
            [listener],
            lambda: Answer(held),
            lambda: len(held),
            board,
            tls=None,
            handshake_s=1.0,
        )
        acceptor.start()
    else:
        await asyncio.get_running_loop().create_server(
            lambda: Answer(held), sock=listener, backlog=1024
        )
    await asyncio.Event().wait()


def bind(port: int, *, reuses_port: bool) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuses_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.setblocking(False)
    return listener


def start(way: str, number: int) -> tuple[int, list[int]]:
    """Start the processes; returns the port and their ids."""
    reuses_port = way == "reuseport"
    first = bind(0, reuses_port=reuses_port)
    port = first.getsockname()[1]
    cells = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")[:number]
    pids = []
    for index in range(number):
        listener = bind(port, reuses_port=True) if reuses_port and index else first
        pid = os.fork()
        if not pid:
            uvloop.run(serve(way, listener, Board(cells, index)))
        pids.append(pid)
    first.close()
    return port, pids


async def connect(port: int) -> tuple[int, asyncio.StreamWriter, float]:
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"?")
    (pid,) = struct.unpack("!I", await reader.readexactly(4))
    return pid, writer, time.perf_counter() - began


async def measure(port: int, number: int, rounds: int) -> None:
    for name, (connections, is_burst) in LOADS.items():
        shares, times = [], []
        for _ in range(rounds):
            if is_burst:
                made = await asyncio.gather(*(connect(port) for _ in range(connections)))
            else:
                made = [await connect(port) for _ in range(connections)]
            shares.append(max(Counter(pid for pid, _, _ in made).values()) * number / connections)
            times += [taken for _, _, taken in made]
            for _, writer, _ in made:
                writer.close()
            await asyncio.sleep(0.05)
        times.sort()
        p50, p99 = (times[len(times) * percent // 100] * 1e3 for percent in (50, 99))
        print(
            f"  {name:10}  busiest {statistics.median(shares):4.2f} {max(shares):4.2f}"
            f"   ms p50 {p50:5.1f} p99 {p99:5.1f}"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", default="2,4")
    options.add_argument("--rounds", type=int, default=15)
    args = options.parse_args()
    for number in map(int, args.processes.split(",")):
        for way in ("reuseport", "shared", "deferring"):
            port, pids = start(way, number)
            time.sleep(0.5)
            print(f"{way}, {number} processes", flush=True)
            asyncio.run(measure(port, number, args.rounds))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
