"""From a request to what is routed and sent: peek, template, usage, fingerprint."""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from headstart.errors import BadRequest, TemplateError
from headstart.prompt.fingerprint import NO_KEYS, PromptKeys, namespace, prompt_keys
from headstart.prompt.token_cache import tail_of
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.config import PrefixHashConfig
from headstart.wire.http1 import Request
from headstart.wire.json_edit import append_member, set_nested_member
from headstart.wire.openai import RequestPeek, peek_request
from headstart.wire.session import session_of

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
# Others that enter a prompt into a cache; what is only tokenised or embedded enters none.
_OTHER_GENERATION_PATHS: Final = frozenset({"/v1/messages", "/v1/responses"})
RECEIPT_FIELD: Final = b"x-headstart-receipt"
"""Header field of a request that asks for its receipt, and of the answer that has it."""

_USAGE_OPTIONS: Final = b'{"include_usage":true}'


class TemplatedBody(Protocol):
    """A body that a template made (`templates.AppliedTemplate`)."""

    @property
    def body(self) -> bytes:
        """The JSON to send to the engine."""
        ...

    @property
    def template_label(self) -> str:
        """`id@version`."""
        ...


TemplateApplier = Callable[[bytes], TemplatedBody]
"""Makes the body to send of one whose `prompt` names a template; bytes, so that what a template
does not replace stays as the client wrote it.

Raises `TemplateError` or `NotFound`.
"""


class PreparedRequest(msgspec.Struct):
    """What the gateway knows of a request before it chooses a replica.

    Attributes:
        body: bytes to send.
        model: name asked for; empty if there is none.
        is_stream: the body asks for a stream.
        hides_usage: usage is asked for on the gateway's account and must not reach the client.
        body_changes: what was changed, by name.
        template: `id@version`, or None.
        prompt: keys of the prompt's bytes.
        token_key: what its tokens are known by; None where nobody needs them.
        tokens: the prompt as the engine's tokens, where they are known.
        cache_salt: of the request; empty without.
        session: what the client calls its conversation; empty if it does not say.
        wants_receipt: the client asks why its request went where it did.
    """

    body: bytes
    model: str = ""
    is_stream: bool = False
    hides_usage: bool = False
    body_changes: tuple[str, ...] = ()
    template: str | None = None
    prompt: PromptKeys = NO_KEYS
    token_key: bytes | None = None
    tokens: TokenPrompt | None = None
    cache_salt: str = ""
    session: str = ""
    wants_receipt: bool = False


class TokenNeeds(Protocol):
    """Who makes tokens of prompts (`token_side.TokenSide`)."""

    def needs_tokens(self, model: str) -> bool:
        """Return whether a request's tokens are of use to anybody."""
        ...

    def key_of(
        self, model: str, prompt: PromptKeys, tail: bytes, ending: bytes = b""
    ) -> bytes | None:
        """Return what the prompt's tokens are known by; None if it is too short to matter."""
        ...


class Preparer:
    """Reads bodies once and changes only what has to change.

    Args:
        apply_template: None answers a request that names a template with 400.
        blocks: size of the blocks to fingerprint.
        tokens: knows which models' tokens are wanted; None if no model's are.
        renders_response_format: an engine writes the answer's schema into the prompt.
    """

    __slots__ = (
        "_apply_template",
        "_block_bytes",
        "_last_names",
        "_last_namespace",
        "_renders_response_format",
        "_tokens",
    )

    def __init__(
        self,
        apply_template: TemplateApplier | None,
        blocks: PrefixHashConfig,
        *,
        tokens: TokenNeeds | None = None,
        renders_response_format: bool = False,
    ) -> None:
        self._apply_template = apply_template
        self._block_bytes = blocks.block_bytes
        self._tokens = tokens
        self._renders_response_format = renders_response_format
        self._last_names = ("", "")
        self._last_namespace = namespace("", "")

    def prepare(self, request: Request, prepared: PreparedRequest) -> None:
        """Find out what to route and send.

        Args:
            request: the client's.
            prepared: made of its body; filled in, and what was found stays if this raises.

        Raises:
            BadRequest: a body that has to be read is not a JSON object.
            TemplateError, NotFound: the template it names cannot be applied.
        """
        fields = request.header.fields
        prepared.session = session_of(fields)
        prepared.wants_receipt = fields.get(RECEIPT_FIELD) == b"1"
        if request.path in (CHAT_PATH, COMPLETIONS_PATH):
            self._prepare_generation(request, prepared)
        else:
            self._prepare_other(request, prepared)

    def _prepare_generation(self, request: Request, prepared: PreparedRequest) -> None:
        try:
            peek = peek_request(request.body)
        except BadRequest as error:
            if _is_compressed(request):
                message = "A compressed body cannot be read; send it without Content-Encoding."
                raise BadRequest(message) from error
            raise
        if request.path == CHAT_PATH and peek.has_prompt_object():
            prepared.model = peek.model_name()
            prepared.is_stream = peek.is_stream()
            peek = self._fill_template(prepared)
        self._describe(prepared, peek)
        if prepared.is_stream and not peek.asks_for_usage():
            body = _ask_for_usage(prepared.body, peek)
            if body is not prepared.body:
                prepared.body = body
                prepared.hides_usage = True
                prepared.body_changes += ("stream_options",)

    def _prepare_other(self, request: Request, prepared: PreparedRequest) -> None:
        # Any method, any body: only a JSON object is looked at, the rest goes on as it is.
        if request.body[:64].lstrip()[:1] == b"{":
            try:
                peek = peek_request(request.body)
            except BadRequest:
                return
            prepared.model = peek.model_name()
            prepared.is_stream = peek.is_stream()
            if request.path in _OTHER_GENERATION_PATHS:
                self._fingerprint(prepared, peek)

    def _fill_template(self, prepared: PreparedRequest) -> RequestPeek:
        if self._apply_template is None:
            raise TemplateError(
                "The request names a template, and no template folder is configured; "
                "set `templates` in headstart.yaml.",
                param="prompt",
            )
        applied = self._apply_template(prepared.body)
        prepared.body = applied.body
        prepared.template = applied.template_label
        prepared.body_changes += ("template",)
        return peek_request(applied.body)

    def _describe(self, prepared: PreparedRequest, peek: RequestPeek) -> None:
        prepared.model = peek.model_name()
        prepared.is_stream = peek.is_stream()
        parts, prompt = self._fingerprint(prepared, peek)
        tokens = self._tokens
        if tokens is not None and tokens.needs_tokens(prepared.model):
            prepared.token_key = tokens.key_of(
                prepared.model, prompt, tail_of(parts, prompt), peek.ending_parameters()
            )

    def _fingerprint(
        self, prepared: PreparedRequest, peek: RequestPeek
    ) -> tuple[list[msgspec.Raw], PromptKeys]:
        model = prepared.model
        salt = peek.cache_salt if isinstance(peek.cache_salt, str) else ""
        if (model, salt) != self._last_names:  # mostly it is the same model, and no salt
            self._last_names = (model, salt)
            self._last_namespace = namespace(model, salt)
        seed = self._last_namespace + peek.template_parameters(
            renders_response_format=self._renders_response_format
        )
        parts = peek.prompt_parts()
        prompt = prepared.prompt = prompt_keys(parts, seed, block_bytes=self._block_bytes)
        prepared.cache_salt = salt
        return parts, prompt


def _is_compressed(request: Request) -> bool:
    return request.header.fields.get(b"content-encoding", b"identity").lower() != b"identity"


def _ask_for_usage(body: bytes, peek: RequestPeek) -> bytes:
    if not peek.has_stream_options():
        return append_member(body, "stream_options", _USAGE_OPTIONS)
    if peek.asks_for_continuous_usage():
        # Without `include_usage` it has no effect, and with it the client would see the figures.
        body = set_nested_member(body, "stream_options", "continuous_usage_stats", b"false")
    return set_nested_member(body, "stream_options", "include_usage", b"true")
