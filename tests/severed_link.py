"""TCP between a subscriber and a publisher, to be cut, mended, and held without a word."""

import asyncio
import contextlib


class SeveredLink:
    """Carries connections to ports of this machine, on ports of its own that stay the same."""

    def __init__(self, targets):
        self._targets = targets
        self._servers = []
        self._ports = [0] * len(targets)
        self._writers = set()
        self._tasks = set()
        self._flows = asyncio.Event()
        self._flows.set()

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, *endpoints):
        """Carry these ZMQ endpoints; ours are `endpoints`, in the same order."""
        link = cls([int(endpoint.rpartition(":")[2]) for endpoint in endpoints])
        await link.mend()
        try:
            yield link
        finally:
            await link.cut()
            for task in list(link._tasks):
                task.cancel()
            await asyncio.gather(*link._tasks, return_exceptions=True)

    @property
    def endpoints(self):
        return [f"tcp://127.0.0.1:{port}" for port in self._ports]

    async def mend(self):
        """Take connections."""
        for i, target in enumerate(self._targets):
            server = await asyncio.start_server(
                lambda reader, writer, target=target: self._connected(reader, writer, target),
                "127.0.0.1",
                self._ports[i],
            )
            self._servers.append(server)
            self._ports[i] = server.sockets[0].getsockname()[1]

    async def _connected(self, reader, writer, target):
        self._tasks.add(asyncio.current_task())
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", target)
        self._writers |= {writer, other_writer}
        try:
            await asyncio.gather(self._copy(reader, other_writer), self._copy(other_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            other_writer.transport.abort()
            self._tasks.discard(asyncio.current_task())

    async def _copy(self, reader, writer):
        while data := await reader.read(65536):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    def hold(self):
        """Carry nothing, and keep the connections."""
        self._flows.clear()

    def release(self):
        """Carry what was held."""
        self._flows.set()

    async def cut(self):
        """End every connection, and take none."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
