"""`headstart serve` as a child process in front of given engines."""

import asyncio
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from headstart.accounting.record import RequestRecord
from headstart.accounting.store import STORE_FILE, read_records

WAIT_S = 60.0
UNHURRIED = {"health_stall_s": 60, "health_timeout_s": 30}
"""For tests that freeze nothing: on two busy cores a step can take longer than the default."""


@dataclass
class GatewayProcess:
    """A running gateway.

    Attributes:
        process: the child.
        url: of its data port.
        admin: of its admin port.
        folder: where its records are.
    """

    process: asyncio.subprocess.Process
    url: str
    admin: str
    folder: Path

    @classmethod
    @asynccontextmanager
    async def serving(
        cls,
        engines: list[str],
        folder: Path,
        *flags: str,
        num_configured: int = 0,
        **settings: object,
    ):
        """Start it, wait until all engines are available, and end it on leaving.

        Args:
            engines: their URLs.
            num_configured: engines that a configuration file names besides.
            folder: for its records.
            flags: of the command line.
            settings: keys of the configuration, with `_` for `.`.
        """
        command = [sys.executable, "-m", "headstart", "serve", "--port", "0"]
        command += ["--data-dir", str(folder), "--request-log", "off"]
        for url in engines:
            command += ["--engine", url]
        process = await asyncio.create_subprocess_exec(
            *command,
            *flags,
            cwd=folder,
            env=os.environ | {f"HEADSTART_{k.upper()}": str(v) for k, v in settings.items()},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(WAIT_S):
                said = await _read_announcement(process)
                url = re.search(r"listens on (http://\S+)", said)[1]
                admin = re.search(r"metrics\s+(http://[^/\s]+)", said)[1]
                running = cls(process, url, admin, folder)
                drain = asyncio.create_task(_keep(process.stderr, folder / "gateway.log"))
                await running.until_available(len(engines) + num_configured)
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            drain.cancel()

    async def until_available(self, count: int) -> None:
        """Return once exactly `count` replicas may be chosen."""
        async with aiohttp.ClientSession() as session:
            while await self._num_available(session) != count:
                await asyncio.sleep(0.1)

    async def until(self, name: str, key: str, value: object) -> None:
        """Return once `/replicas` says so of the replica `name`."""
        async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as session:
            while (value, name) not in [
                (each[key], each["name"]) for each in await self.replicas(session)
            ]:
                await asyncio.sleep(0.05)

    async def _num_available(self, session: aiohttp.ClientSession) -> int:
        return sum(each["is_available"] for each in await self.replicas(session))

    async def replicas(self, session: aiohttp.ClientSession) -> list[dict]:
        """Return what the admin port says of each replica."""
        async with session.get(f"{self.admin}/replicas") as response:
            return (await response.json())["data"]

    async def records(self) -> list[RequestRecord]:
        """End it politely and return what it recorded."""
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(WAIT_S):
            await self.process.wait()
        return list(read_records(self.folder / STORE_FILE))


async def _read_announcement(process: asyncio.subprocess.Process) -> str:
    said = ""
    while "  curl " not in said:
        line = await process.stderr.readline()
        assert line, said
        said += line.decode()
    return said


async def _keep(stream: asyncio.StreamReader, path: Path) -> None:
    with path.open("ab", buffering=0) as log:
        while line := await stream.readline():
            log.write(line)
