"""Every target by name."""

from fuzz.target import Target
from fuzz.targets import (
    http_request,
    http_response,
    json_edit,
    json_request,
    kv_events,
    live_client,
    live_engine,
    sse,
    template,
    usage,
)

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        http_request,
        http_response,
        sse,
        json_request,
        json_edit,
        usage,
        kv_events,
        template,
        live_client,
        live_engine,
    )
}
