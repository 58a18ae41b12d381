"""Every error that headstart raises on purpose.

    HeadstartError                  code, HTTP status, message with the value and the next step
    ├── ConfigError                 500  a file, flag or variable that cannot be used
    ├── BadRequest                  400  the client's request cannot be understood
    │   ├── ContextOverflow         400  the prompt does not fit the model's context
    │   └── TemplateError           400  a template or its variables cannot be used
    ├── Unauthorized                401  no key, or one that no tenant has
    ├── NotFound                    404  no such model, template, version or path
    ├── MethodNotAllowed            405  the path exists, but not for this method
    ├── Conflict                    409  what is asked for is there already
    ├── BodyTooLarge                413
    ├── HeadersTooLarge             431
    ├── Overloaded                  429  over a limit; try again later
    ├── UpstreamError               502  the engine failed before it answered
    │   ├── UpstreamUnavailable     503  no replica can take the request
    │   └── UpstreamTimeout         504  the engine was silent for too long
    ├── StoreUnavailable            500  records cannot be written or read
    └── ModelUnavailable            500  weights cannot be fetched or read

A message names the offending value and what to do next. It never contains prompt text or a
secret. `code` is stable: clients and dashboards may depend on it.
"""

from typing import ClassVar


class HeadstartError(Exception):
    """Base of all errors with a stable `code`, an HTTP `status` and a `message` for people.

    Args:
        message: what is wrong, with the value, and the next step.
        param: the request field, flag or configuration key at fault, if there is one.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "headstart_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigError(HeadstartError):
    """A configuration file, flag or environment variable cannot be used."""

    code = "config_error"


class BadRequest(HeadstartError):
    """The client's request cannot be understood."""

    code = "bad_request"
    status = 400
    type = "invalid_request_error"


class ContextOverflow(BadRequest):
    """The prompt and the requested output do not fit the model's context."""

    code = "context_length_exceeded"


class TemplateError(BadRequest):
    """A template, or the variables given for it, cannot be used."""

    code = "template_error"


class Unauthorized(HeadstartError):
    """The request carries no key, or one that belongs to no tenant."""

    code = "invalid_api_key"
    status = 401
    type = "authentication_error"


class NotFound(HeadstartError):
    """There is no such model, template, version or path."""

    code = "not_found"
    status = 404
    type = "not_found_error"


class MethodNotAllowed(HeadstartError):
    """The path is served, but not for the request's method."""

    code = "method_not_allowed"
    status = 405
    type = "invalid_request_error"


class Conflict(HeadstartError):
    """What is to be made is there already, under that name or at that address."""

    code = "conflict"
    status = 409
    type = "invalid_request_error"


class BodyTooLarge(HeadstartError):
    """The body is larger than the limit."""

    code = "body_too_large"
    status = 413
    type = "invalid_request_error"


class HeadersTooLarge(HeadstartError):
    """The header section is larger than the limit."""

    code = "headers_too_large"
    status = 431
    type = "invalid_request_error"


class Overloaded(HeadstartError):
    """A limit is reached; the same request may succeed later.

    Args:
        message: as for every error.
        param: likewise.
        retry_after_s: seconds after which it may, >= 1.
    """

    code = "overloaded"
    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = max(1, retry_after_s)


class ConcurrencyLimit(Overloaded):
    """The tenant has as many requests open as it may."""

    code = "concurrent_limit"


class RateLimit(Overloaded):
    """The tenant has used what it may in a minute.

    Args:
        message: as for every error.
        retry_after_s: seconds after which so much will have expired that the request may pass.
        limit: what the tenant may use in a minute.
        remaining: what is left of it.
    """

    unit: ClassVar[str] = ""

    def __init__(self, message: str, *, retry_after_s: int, limit: int, remaining: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit
        self.remaining = max(0, remaining)


class RequestRateLimit(RateLimit):
    """The tenant has begun as many requests as it may in a minute."""

    code = "requests_per_minute_limit"
    unit = "requests"


class TokenRateLimit(RateLimit):
    """The request's prompt does not fit into what the tenant may use in a minute."""

    code = "input_tokens_per_minute_limit"
    unit = "tokens"


class QueueFull(Overloaded):
    """All replicas are busy, and as many requests wait for one as may."""

    code = "queue_full"


class QueueTimeout(Overloaded):
    """All replicas were busy for as long as a request may wait."""

    code = "queue_timeout"


class ObjectiveMissed(Overloaded):
    """The first token cannot be expected within the objective."""

    code = "ttft_objective"


class UpstreamError(HeadstartError):
    """The engine failed before it gave an answer."""

    code = "upstream_error"
    status = 502
    type = "upstream_error"


class UpstreamUnavailable(UpstreamError):
    """No replica can take the request now."""

    code = "no_replica_available"
    status = 503


class UpstreamTimeout(UpstreamError):
    """The engine was silent for longer than the deadline."""

    code = "upstream_timeout"
    status = 504


class StoreUnavailable(HeadstartError):
    """Records cannot be written or read now; no request fails because of it."""

    code = "store_unavailable"


class ModelUnavailable(HeadstartError):
    """Model weights cannot be fetched or read."""

    code = "model_unavailable"
