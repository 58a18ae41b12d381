"""What the tests ask a vLLM, and how they read its answers."""

import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
from gateway_process import GatewayProcess
from vllm_replica import MODEL_NAME, VllmReplica

CHAT = "/v1/chat/completions"
# About 20 tokens a sentence; a prefill takes seconds a thousand tokens on two cores.
SENTENCE = "You answer for a bicycle shop. Be brief, be polite, and never promise a date. "
PREFILL = SENTENCE * 20
"""Seconds of work before the first token."""


def chat_body(question: str, *, system: str = "Be brief.", **more: object) -> dict:
    """A chat of a system prompt and one question, answered greedily with eight tokens."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def story(max_tokens: int, question: str = "Tell me a long story.", **more: object) -> dict:
    """A chat whose answer has exactly so many tokens."""
    return chat_body(question, max_tokens=max_tokens, ignore_eos=True, **more)


@dataclass
class Answer:
    """An answer, read to its end.

    Attributes:
        status: of HTTP.
        replica: which one it says that it comes from.
        body: all of it.
        first_s: from sending to the first content of a stream.
        request_id: the gateway's.
    """

    status: int
    replica: str | None
    body: bytes = b""
    first_s: float | None = None
    request_id: str | None = None
    data: list[bytes] = field(default_factory=list)

    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict]:
        """The events of a stream, `[DONE]` left out."""
        return [json.loads(each) for each in self.data if each != b"[DONE]"]

    @property
    def errors(self) -> list[dict]:
        """The error events of a stream."""
        return [event["error"] for event in self.events if "error" in event]

    @property
    def is_done(self) -> bool:
        """A stream that the engine declared complete."""
        return self.data[-1:] == [b"[DONE]"]

    @property
    def usage(self) -> dict:
        if not self.data:
            return self.json()["usage"]
        return [event["usage"] for event in self.events if event.get("usage")][-1]

    @property
    def cached_tokens(self) -> int:
        return self.usage["prompt_tokens_details"]["cached_tokens"]


async def ask(session: aiohttp.ClientSession, url: str, body: dict, path: str = CHAT) -> Answer:
    """Send a request and read its answer, streamed or not."""
    sent = time.perf_counter()
    # As a file, because aiohttp warns of large bytes.
    data, headers = io.BytesIO(json.dumps(body).encode()), {"Content-Type": "application/json"}
    async with session.post(url + path, data=data, headers=headers) as response:
        return await read(response, sent)


async def read(
    response: aiohttp.ClientResponse,
    sent: float = 0.0,
    on_first: Callable[[], object] | None = None,
) -> Answer:
    """Read an answer to its end; call `on_first` at the first content of a stream."""
    answer = Answer(response.status, response.headers.get("x-headstart-replica"))
    answer.request_id = response.headers.get("x-headstart-request-id")
    if not response.content_type.startswith("text/event-stream"):
        answer.body = await response.read()
        return answer
    async for line in response.content:
        answer.body += line
        if line.startswith(b"data:"):
            answer.data.append(line[5:].strip())
            if answer.first_s is None and b'"content":"' in line and b'"content":""' not in line:
                answer.first_s = time.perf_counter() - sent
                if on_first is not None:
                    on_first()
    return answer


@contextlib.asynccontextmanager
async def stream_from(
    session: aiohttp.ClientSession, gateway: GatewayProcess, engine: VllmReplica, max_tokens: int
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Open a stream that `engine` answers, if the gateway asks its replicas in turn."""
    body = story(max_tokens, stream=True)
    while True:
        response = await session.post(gateway.url + CHAT, json=body)
        if response.headers["x-headstart-replica"] == engine.name:
            break
        response.close()
    async with response:
        yield response
