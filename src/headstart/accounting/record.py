"""The one line that every request leaves behind.

Unknown is `None` and never zero: an engine that does not report `cached_tokens` has not said
that nothing was cached. No field holds prompt text, a key or a header's value.
"""

import msgspec

from headstart.routing.dispatch import Dispatch
from headstart.wire.usage import UNKNOWN_USAGE, Usage


class RequestRecord(msgspec.Struct, frozen=True):
    """What one request was, where it went, what it cost and how it ended.

    A Struct, because one is made per request and a frozen dataclass takes three times as long.

    Attributes:
        request_id: the gateway's own id, also in `x-headstart-request-id`.
        time_s: seconds since 1970 UTC when the request head was complete.
        path: the request's path without its query, e.g. `/v1/chat/completions`.
        model: the model asked for; empty where the body names none.
        tenant: the tenant's name; `default` without tenants, empty for a key that no tenant has.
        business_line: the tenant's business line; empty if it has none.
        template: `id@version` of the template that made the prompt, else None.
        replica: the replica that gave the answer; empty if none did.
        is_stream: the client asked for a stream.
        status: HTTP status sent to the client; 499 if it left before the answer was complete.
        error_code: stable code of the error that ended the request, else None.
        usage: the engine's figures, normalised.
        ttft_s: accept to first content token; None if there was none.
        tpot_s: (last - first token) / (output tokens - 1); None below two output tokens.
        total_s: accept to the last byte handed to the client's connection.
        queue_s: how long it waited in the gateway for a replica; 0 if it did not.
        retries: attempts on another replica beyond the first.
        policy: routing policy that chose the replica; empty if none was asked.
        reason: why the policy chose it, in the policy's words.
        matched_tokens: of the input, what the index predicted the replica holds; None where no
            index was asked.
        dispatch: of which the store makes the receipt; None if no policy was asked, and in records
            that were read.
        body_changes: what the gateway changed in the body, e.g. `("stream_options",)`.
    """

    request_id: str
    time_s: float
    path: str
    model: str = ""
    tenant: str = "default"
    business_line: str = ""
    template: str | None = None
    replica: str = ""
    is_stream: bool = False
    status: int = 0
    error_code: str | None = None
    usage: Usage = UNKNOWN_USAGE
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float = 0.0
    queue_s: float = 0.0
    retries: int = 0
    policy: str = ""
    reason: str = ""
    body_changes: tuple[str, ...] = ()
    matched_tokens: int | None = None
    dispatch: Dispatch | None = None
