"""What a tenant may use: refuses a request that is over its limits, and says when it may pass.

Pure: `now` is an argument. What counts:

* as open, every request that goes to an engine, from its admission until its answer has ended,
  also while it waits in the queue;
* as a request of the minute, every such request that was sent to a replica, once, whatever came of
  it. One that ended before (no replica, left while it waited) is given back;
* as input tokens of the minute, the prompts of generations. How many tokens a prompt has only the
  engine knows, and it says so at the end. Until then an estimate is booked, and it stays where the
  engine reports none.

A refused request counts nowhere. An estimate above the whole limit is booked as the limit: it may
be wrong by far (an image in a prompt is many bytes and few tokens), and a client that is refused
for good by a guess has no way out. Such a request passes when the minute before it is empty.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final

from headstart.accounting.metrics import USAGE_PATHS
from headstart.accounting.tenant import Tenant, TenantLimits
from headstart.accounting.tenant_counts import TenantCounts
from headstart.errors import ConcurrencyLimit, Overloaded, RequestRateLimit, TokenRateLimit

_BYTES_PER_TOKEN: Final = 4
# Prompt tokens over which the bytes per token of a tenant are taken: some hundred requests.
_NUM_LEARNED: Final = 1 << 18
_NUM_ASSUMED: Final = 1 << 12


class TokenEstimate:
    """How many tokens a tenant's prompts have by their bytes.

    Four bytes per token at first; a ratio of sums over what its engines report after that, in
    which older requests weigh less.

    Args:
        most: a higher estimate is cut down to this; None leaves it.
    """

    __slots__ = ("_most", "_num_bytes", "_num_tokens")

    def __init__(self, most: int | None = None) -> None:
        self._most = inf if most is None else most
        self._num_tokens = _NUM_ASSUMED
        self._num_bytes = _NUM_ASSUMED * _BYTES_PER_TOKEN

    def tokens(self, num_bytes: int) -> int:
        """Return the tokens to expect of a body of `num_bytes`."""
        tokens = num_bytes * self._num_tokens // self._num_bytes
        return tokens if tokens <= self._most else int(self._most)

    def learn(self, num_bytes: int, num_tokens: int) -> None:
        """Take in what an engine reported for a body."""
        self._num_bytes += num_bytes
        self._num_tokens += num_tokens
        if self._num_tokens > _NUM_LEARNED:
            self._num_bytes = self._num_bytes // 2 + 1
            self._num_tokens //= 2


class Admission:
    """A request that counts for its tenant; its `end` must be called once.

    Args:
        counts: where it counts.
        estimate: its tenant's, which learns from it.
        tenant: its index in `counts`.
        second: when it was admitted.
        num_bytes: of its prompt; 0 if it generates nothing.
        tokens: input tokens that it is booked with.
    """

    __slots__ = ("_counts", "_estimate", "_num_bytes", "_second", "_tenant", "_tokens")

    def __init__(
        self,
        counts: TenantCounts,
        estimate: TokenEstimate,
        tenant: int,
        second: int,
        num_bytes: int,
        tokens: int,
    ) -> None:
        self._counts = counts
        self._estimate = estimate
        self._tenant = tenant
        self._second = second
        self._num_bytes = num_bytes
        self._tokens = tokens

    def end(self, input_tokens: int | None, *, was_sent: bool) -> None:
        """Note that the request has ended.

        Args:
            input_tokens: what the engine reported; None leaves the estimate.
            was_sent: a replica was sent it; else it counts nowhere.
        """
        actual = self._tokens
        if not was_sent:
            actual = 0
            self._counts.take_back(self._tenant, self._second)
        elif input_tokens is not None and self._num_bytes:
            actual = input_tokens
            self._estimate.learn(self._num_bytes, input_tokens)
        self._counts.end(self._tenant, self._second, self._tokens, actual)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """How much of its limits one tenant has in use, in this process.

    Attributes:
        tenant: its name.
        open_requests: requests that are open now.
        requests: requests of the last minute.
        input_tokens: input tokens of the last minute.
    """

    tenant: str
    open_requests: int
    requests: int
    input_tokens: int


class TenantLimiter:
    """Admits requests within their tenants' limits.

    Args:
        tenants: all of the gateway; those without limits are let through uncounted.
        counts: of these tenants, in this order, shared with other workers; None to count alone.
    """

    __slots__ = ("_counts", "_estimates", "_indexes", "_tenants")

    def __init__(self, tenants: Sequence[Tenant], counts: TenantCounts | None = None) -> None:
        self._tenants = tuple(tenants)
        self._counts = counts or TenantCounts([tenant.limits for tenant in tenants])
        self._estimates = [
            TokenEstimate(tenant.limits.input_tokens_per_minute) for tenant in tenants
        ]
        self._indexes = {
            tenant.name: index
            for index, tenant in enumerate(tenants)
            if replace(tenant.limits, least_priority=0) != TenantLimits()  # the queue's affair
        }

    @property
    def has_limits(self) -> bool:
        """Some tenant has limits."""
        return bool(self._indexes)

    def admit(self, tenant: Tenant, path: str, num_bytes: int, now: float) -> Admission | None:
        """Count a request in; None if its tenant has no limits.

        Args:
            tenant: whose it is.
            path: where it goes; only on those that generate do prompts have tokens.
            num_bytes: size of its body.
            now: monotonic seconds.

        Raises:
            ConcurrencyLimit, RequestRateLimit, TokenRateLimit: the limit for which the request
                would have to wait longest.
        """
        index = self._indexes.get(tenant.name)
        if index is None:
            return None
        estimate, tokens, second = self._estimates[index], 0, int(now)
        if path in USAGE_PATHS:
            tokens = estimate.tokens(num_bytes)
        else:
            num_bytes = 0
        if not self._counts.try_begin(index, tokens, second):
            raise self._refusal(index, tokens, now)
        return Admission(self._counts, estimate, index, second, num_bytes, tokens)

    def sweep(self, now: float) -> None:
        """Let what is older than a minute expire, for the other workers too."""
        self._counts.advance(int(now))

    def used(self) -> Iterator[LimitUse]:
        """Yield what each tenant with limits has in use."""
        for name, index in self._indexes.items():
            yield LimitUse(name, *self._counts.own(index))

    def _refusal(self, index: int, tokens: int, now: float) -> Overloaded:
        name, limits = self._tenants[index].name, self._tenants[index].limits
        num_open, requests, used = self._counts.totals(index)
        refusals: list[Overloaded] = []
        limit = limits.concurrent
        if limit is not None and num_open >= limit:
            # When one of them ends nobody knows.
            message = f"{name} has {num_open} requests open and may have {limit}; wait for one."
            refusals.append(ConcurrencyLimit(message))
        limit = limits.requests_per_minute
        if limit is not None and requests >= limit:
            wait_s = ceil(self._counts.requests_wait_s(index, requests + 1 - limit, now))
            message = f"{name} may send {limit} requests in a minute; try again in {wait_s} s."
            refusals.append(
                RequestRateLimit(
                    message, retry_after_s=wait_s, limit=limit, remaining=limit - requests
                )
            )
        limit = limits.input_tokens_per_minute
        if limit is not None and used + tokens > limit:
            wait_s = ceil(self._counts.tokens_wait_s(index, used + tokens - limit, now))
            message = (
                f"{name} may send {limit} input tokens in a minute, has sent {used}, and these "
                f"are about {tokens}; try again in {wait_s} s."
            )
            refusals.append(
                TokenRateLimit(message, retry_after_s=wait_s, limit=limit, remaining=limit - used)
            )
        if not refusals:  # other workers' requests have ended since
            refusals.append(Overloaded(f"{name} was over a limit a moment ago; try again."))
        return max(refusals, key=lambda refusal: refusal.retry_after_s)
