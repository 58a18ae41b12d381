"""What every handler of one server works with."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from aiohttp import web

from headstart.clock import Clock
from headstart.engines.embedded.api.requests import (
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
    answer_schema,
)
from headstart.engines.embedded.api.responses import Envelope
from headstart.engines.embedded.engine import EmbeddedEngine
from headstart.engines.embedded.kv_publisher import KvEventPublisher
from headstart.engines.embedded.metrics import EngineMetrics
from headstart.engines.embedded.request import GenerationRequest
from headstart.errors import BadRequest, NotFound, UpstreamUnavailable
from headstart.prompt.chat_template import ChatTemplate
from headstart.types import TokenId


class RequestGate:
    """Counts generating requests and, once closed, lets no more in."""

    def __init__(self) -> None:
        self._num_open = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Count one request while the block runs.

        Raises:
            UpstreamUnavailable: the server is shutting down.
        """
        self.check_open()
        self._num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._idle.set()

    def check_open(self) -> None:
        """Do nothing while requests are let in.

        Raises:
            UpstreamUnavailable: the server is shutting down.
        """
        if self._is_closed:
            raise UpstreamUnavailable(
                "This engine is shutting down; send the request to another replica."
            )

    def close(self) -> None:
        """Admit no further request."""
        self._is_closed = True

    async def wait_idle(self) -> None:
        """Return when no admitted request is left."""
        await self._idle.wait()


@dataclass(frozen=True, slots=True)
class ApiContext:
    """One server's parts.

    Attributes:
        engine: started.
        template: the model's chat template; None if the file carries none.
        model_name: the name that clients use.
        clock: arrival times (the engine's own, `time.monotonic`) and dates.
        metrics: what `/metrics` shows.
        gate: which requests are open.
        publisher: KV events, if they are published.
    """

    engine: EmbeddedEngine
    template: ChatTemplate | None
    model_name: str
    clock: Clock
    metrics: EngineMetrics
    gate: RequestGate
    publisher: KvEventPublisher | None

    def check_model(self, name: str | None) -> None:
        """Accept the served name, or none at all.

        Raises:
            NotFound: another name.
        """
        if name is not None and name != self.model_name:
            raise NotFound(
                f"The model {name!r} does not exist here; this engine serves {self.model_name!r}.",
                param="model",
            )

    def envelope(self, prefix: str) -> Envelope:
        """Return a fresh envelope; ids start with `prefix`."""
        return Envelope(f"{prefix}-{uuid4().hex}", int(self.clock.time()), self.model_name)

    async def chat_tokens(self, request: ChatRequest | TokenizeRequest) -> list[int]:
        """Render and tokenise messages, off the event loop.

        Raises:
            BadRequest: the messages cannot be rendered, or the model has no chat template.
        """
        template = self.template
        if template is None:
            raise BadRequest(
                "This model's file carries no chat template; use /v1/completions.",
                param="messages",
            )
        schema = answer_schema(request.response_format)

        def build() -> list[int]:
            text = template.render(
                request.messages or [],
                tools=request.tools,
                response_schema=schema,
                add_generation_prompt=request.add_generation_prompt,
                now=datetime.fromtimestamp(self.clock.time()),  # local, as HF
                **_template_variables(request.chat_template_kwargs),
            )
            return self.engine.tokenizer.encode(text)

        return await asyncio.to_thread(build)

    async def text_tokens(self, prompt: str | list[int], *, add_bos: bool = True) -> list[int]:
        """Tokenise text, off the event loop; check given ids against the vocabulary.

        Args:
            prompt: text or token ids.
            add_bos: put the model's start token before text, if the model wants one.

        Raises:
            BadRequest: no tokens, or an id outside the vocabulary.
        """
        if isinstance(prompt, str):
            tokens = await asyncio.to_thread(self._encode, prompt, add_bos)
        else:
            tokens = prompt
            self.check_token_ids(tokens, "prompt")
        if not tokens:
            raise BadRequest("`prompt` has no tokens; send some text.", param="prompt")
        return tokens

    def check_token_ids(self, tokens: Sequence[int], field: str) -> None:
        """Check ids against the vocabulary.

        Raises:
            BadRequest: one lies outside; it is named.
        """
        size = self.engine.tokenizer.vocab_size
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise BadRequest(
                f"Token id {wrong} in `{field}` is outside the vocabulary (0 to {size - 1}).",
                param=field,
            )

    def sequences(
        self,
        prompts: Sequence[Sequence[int]],
        request: ChatRequest | CompletionRequest,
        max_tokens: int,
        arrival_s: float,
    ) -> list[GenerationRequest]:
        """Return what to generate: `n` choices of each prompt, prompt by prompt."""
        return [
            GenerationRequest(
                request_id=uuid4().hex,
                prompt_token_ids=tuple(map(TokenId, tokens)),
                sampling=request.sampling(max_tokens, choice),
                cache_salt=request.cache_salt,
                arrival_s=arrival_s,
            )
            for tokens in prompts
            for choice in range(request.num_choices)
        ]

    def _encode(self, text: str, add_bos: bool) -> list[int]:
        engine = self.engine
        tokens = engine.tokenizer.encode(text)
        start = engine.bos_token_id
        if add_bos and engine.add_bos_token and start is not None and tokens[:1] != [start]:
            return [start, *tokens]
        return tokens


CONTEXT = web.AppKey("context", ApiContext)

_RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "response_schema", "add_generation_prompt", "now")
)


def _template_variables(given: dict[str, Any] | None) -> dict[str, Any]:
    taken = _RESERVED_VARIABLES & (given or {}).keys()
    if taken:
        raise BadRequest(
            f"`chat_template_kwargs` may not set {min(taken)!r}; use the request's own field.",
            param="chat_template_kwargs",
        )
    return given or {}
