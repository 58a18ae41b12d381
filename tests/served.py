"""A `headstart serve` process, and a scripted engine behind it."""

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

WAIT_S = 60.0
"""No step takes this long; it bounds a test that hangs."""

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 2,
    "total_tokens": 102,
    "prompt_tokens_details": {"cached_tokens": 64},
}


class ScriptedEngine:
    """An engine that streams one token, then waits until it is told to go on."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_post("/v1/chat/completions", self.chat)

    async def models(self, _request):
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def chat(self, request):
        body = await request.json()
        if not body.get("stream"):
            message = {"role": "assistant", "content": "hello"}
            return web.json_response(
                {"id": "c", "choices": [{"index": 0, "message": message}], "usage": USAGE}
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self.send(response, {"choices": [{"index": 0, "delta": {"content": "one"}}]})
        await self.go_on.wait()
        await self.send(response, {"choices": [{"index": 0, "delta": {"content": "two"}}]})
        await self.send(response, {"choices": [], "usage": USAGE})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def send(self, response, chunk):
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@dataclass
class Served:
    """A running `headstart serve`."""

    process: asyncio.subprocess.Process
    said: list[str]
    data: str
    admin: str

    async def said_line(self, pattern):
        while not (found := [line for line in self.said if re.search(pattern, line)]):
            line = await asyncio.wait_for(self.process.stderr.readline(), WAIT_S)
            assert line, "\n".join(self.said)
            self.said.append(line.decode().rstrip())
        return found[0]

    @property
    def announced(self):
        return "\n".join(self.said)

    async def end(self):
        out, err = await asyncio.wait_for(self.process.communicate(), WAIT_S)
        self.said.extend(err.decode().splitlines())
        return self.process.returncode, out.decode()


@asynccontextmanager
async def serve(*flags, cwd, environment=None):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headstart", "serve", "--port", "0", "--data-dir", str(cwd)),
        *flags,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    served = Served(process, [], "", "")
    try:
        await served.said_line(r"^  curl ")
        served.data = re.search(r"https?://\S+", await served.said_line("listens on"))[0]
        served.admin = re.search(r"http://[^/]+", await served.said_line("metrics"))[0]
        yield served
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def chat(session, served, **more):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    return session.post(f"{served.data}/v1/chat/completions", json=body)
