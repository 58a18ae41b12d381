"""One request's record, of what its exchange knows in the end."""

from headstart.accounting.record import RequestRecord
from headstart.accounting.tenant import Tenant
from headstart.gateway.attempt import Attempt
from headstart.gateway.prepare import PreparedRequest
from headstart.gateway.timeline import Timeline
from headstart.wire.http1 import Request
from headstart.wire.usage import Usage


def make_record(
    request: Request,
    prepared: PreparedRequest,
    tenant: Tenant,
    times: Timeline,
    usage: Usage,
    *,
    request_id: str,
    status: int,
    error_code: str | None,
    attempt: Attempt | None,
    has_answer: bool,
    retries: int,
    now: float,
) -> RequestRecord:
    """Return the record of a request that has ended.

    Args:
        request: the client's.
        prepared: what was found in it.
        tenant: whose it is.
        times: complete.
        usage: the engine's figures.
        request_id: the gateway's own.
        status: what the client was told.
        error_code: of the error that ended it, if one did.
        attempt: the last one; None if there was none.
        has_answer: a replica gave one.
        retries: attempts beyond the first.
        now: monotonic seconds at the end.
    """
    dispatch = None if attempt is None else attempt.dispatch
    ttft_s = tpot_s = None
    if times.first_content_at is not None:
        ttft_s, tpot_s = times.ttft_s, times.tpot_s(usage.output_tokens or 0)
    return RequestRecord(
        request_id=request_id,
        time_s=times.time_s,
        path=request.path,
        model=prepared.model,
        tenant=tenant.name,
        business_line=tenant.business_line,
        template=prepared.template,
        replica=attempt.replica.name if attempt is not None and has_answer else "",
        is_stream=prepared.is_stream,
        status=status,
        error_code=error_code,
        usage=usage,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        total_s=now - times.accepted_at,
        queue_s=times.queue_s,
        retries=retries,
        policy=dispatch.policy if dispatch is not None else "",
        reason=attempt.dispatch.reason + attempt.remark if attempt is not None else "",
        body_changes=prepared.body_changes,
        matched_tokens=dispatch.matched_tokens if dispatch is not None else None,
        dispatch=dispatch,
    )
