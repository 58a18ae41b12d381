"""From a request to what is routed and sent: peek, template, usage, fingerprint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headstart.errors import BadRequest, TemplateError
from headstart.prompt.fingerprint import namespace, prefix_keys
from headstart.routing.config import PrefixHashConfig
from headstart.types import PrefixKey
from headstart.wire.http1 import Request
from headstart.wire.json_edit import append_member, set_nested_member
from headstart.wire.openai import RequestPeek, peek_request

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"

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


@dataclass(slots=True)
class PreparedRequest:
    """What the gateway knows of a request before it chooses a replica.

    Attributes:
        body: bytes to send.
        model: name asked for; empty if there is none.
        is_stream: the body asks for a stream.
        hides_usage: usage is asked for on the gateway's account and must not reach the client.
        body_changes: what was changed, by name.
        template: `id@version`, or None.
        keys: fingerprints of the leading blocks.
    """

    body: bytes
    model: str = ""
    is_stream: bool = False
    hides_usage: bool = False
    body_changes: tuple[str, ...] = ()
    template: str | None = None
    keys: tuple[PrefixKey, ...] | list[PrefixKey] = ()


class Preparer:
    """Reads bodies once and changes only what has to change.

    Args:
        apply_template: None answers a request that names a template with 400.
        blocks: size and number of the blocks to fingerprint.
    """

    __slots__ = ("_apply_template", "_block_bytes", "_max_blocks")

    def __init__(self, apply_template: TemplateApplier | None, blocks: PrefixHashConfig) -> None:
        self._apply_template = apply_template
        self._block_bytes = blocks.block_bytes
        self._max_blocks = blocks.leading_blocks

    def prepare(self, request: Request, prepared: PreparedRequest) -> None:
        """Find out what to route and send.

        Args:
            request: the client's.
            prepared: made of its body; filled in, and what was found stays if this raises.

        Raises:
            BadRequest: a body that has to be read is not a JSON object.
            TemplateError, NotFound: the template it names cannot be applied.
        """
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
            self._describe(prepared, peek)

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
        if len(prepared.body) < self._block_bytes:
            return  # no block can be full
        salt = peek.cache_salt if isinstance(peek.cache_salt, str) else ""
        prepared.keys = prefix_keys(
            peek.prompt_parts(),
            namespace(prepared.model, salt),
            block_bytes=self._block_bytes,
            max_blocks=self._max_blocks,
        )


def _is_compressed(request: Request) -> bool:
    return request.header.fields.get(b"content-encoding", b"identity").lower() != b"identity"


def _ask_for_usage(body: bytes, peek: RequestPeek) -> bytes:
    if not peek.has_stream_options():
        return append_member(body, "stream_options", _USAGE_OPTIONS)
    if peek.asks_for_continuous_usage():
        # Without `include_usage` it has no effect, and with it the client would see the figures.
        body = set_nested_member(body, "stream_options", "continuous_usage_stats", b"false")
    return set_nested_member(body, "stream_options", "include_usage", b"true")
