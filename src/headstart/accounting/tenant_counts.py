"""What each tenant has used of its limits, in a form that several processes can share.

Theory of operation: all figures are 64-bit integers in one flat array. A worker process has one
row in it and is the only one that writes there; what is decided on is the sum over all rows. No
lock is needed, and the price is that workers that decide at the same moment do not see each
other: of `n` workers, `n - 1` requests too many may pass in such a race.

    row      open        T cells   requests that are open now
             requests    T         requests of the last minute
             tokens      T         input tokens of the last minute
             second      1         up to which second the two above are right
             bucket 0    2 T       requests and tokens that began in one second
             …
             bucket 63   2 T

T is the number of tenants. "The last minute" is the present second and the 60 before it. What
began at 12:00:00.7 therefore counts up to 12:01:01.0: longer than 60 s by less than one, and never
shorter, so that no 60 s can hold more than the limit.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from headstart.accounting.tenant import TenantLimits

WINDOW_S: Final = 60
"""The "minute" of limits per minute, in seconds."""

_NUM_BUCKETS: Final = 64  # a power of two above WINDOW_S + 1
_MASK: Final = _NUM_BUCKETS - 1
_CELL_BYTES: Final = 8

# A false count of an engine must not be able to overflow a sum of many.
_MAX_TOKENS: Final = 1 << 40
_UNLIMITED: Final = 1 << 62


class Cells(Protocol):
    """A flat array of 64-bit integers: a list, or `memoryview(shared_memory).cast("q")`."""

    def __len__(self) -> int:
        """Return the number of cells."""
        ...

    def __getitem__(self, index: int, /) -> int:
        """Read a cell."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write a cell."""
        ...


class TenantCounts:
    """Open requests, and requests and input tokens of the last minute, by tenant.

    A `second` is a reading of a monotonic clock that all workers share, rounded down.

    Args:
        limits: one per tenant; a tenant is an index into it.
        cells: memory shared by `num_rows` workers, of `num_bytes` bytes and zero at first; None
            for a process that counts alone.
        row: this worker's; what it holds of a worker before is taken over.
        num_rows: workers that share the memory.
    """

    __slots__ = (
        "_bucket_0",
        "_bucket_now",
        "_ceilings",
        "_cells",
        "_first",
        "_num_rows",
        "_num_tenants",
        "_row_cells",
        "_second",
    )

    def __init__(
        self,
        limits: Sequence[TenantLimits],
        *,
        cells: Cells | None = None,
        row: int = 0,
        num_rows: int = 1,
    ) -> None:
        assert 0 <= row < num_rows
        self._ceilings = [_ceilings(each) for each in limits]
        self._num_tenants = len(limits)
        self._num_rows = num_rows
        self._row_cells = _row_cells(len(limits))
        # A list is read and written in half the time of a memoryview.
        self._cells: Cells = [0] * self._row_cells if cells is None else cells
        assert len(self._cells) >= num_rows * self._row_cells
        self._first = row * self._row_cells
        self._bucket_0 = self._first + 3 * self._num_tenants + 1
        self._second = self._cells[self._bucket_0 - 1]
        self._bucket_now = self._bucket(self._second)
        self._take_over(row)

    @staticmethod
    def num_bytes(num_tenants: int, num_rows: int) -> int:
        """Return how much shared memory `num_rows` workers need."""
        return num_rows * _row_cells(num_tenants) * _CELL_BYTES

    @staticmethod
    def forget_open(cells: Cells, num_tenants: int, row: int) -> None:
        """Note, from outside, that the worker of `row` has died: none of its requests is open.

        What it let through in the last minute stays counted, and expires once the next worker has
        taken the row over.
        """
        first = row * _row_cells(num_tenants)
        for at in range(first, first + num_tenants):
            cells[at] = 0

    # The path of a request. Cost: O(rows), and `advance` O(tenants) once a second.

    def try_begin(self, tenant: int, tokens: int, second: int) -> bool:
        """Count a request in if the tenant's limits have room for it.

        Args:
            tenant: whose it is.
            tokens: input tokens that it is booked with.
            second: when it begins, rounded down.
        """
        if second != self._second:
            self.advance(second)
        cells, num = self._cells, self._num_tenants
        at = self._first + tenant
        own_open, own_requests, own_tokens = cells[at], cells[at + num], cells[at + 2 * num]
        num_open, requests, used = own_open, own_requests, own_tokens
        if self._num_rows > 1:
            num_open, requests, used = self.totals(tenant)
        max_open, max_requests, max_tokens = self._ceilings[tenant]
        if num_open >= max_open or requests >= max_requests or used + tokens > max_tokens:
            return False
        bucket = self._bucket_now + tenant
        cells[at] = own_open + 1
        cells[at + num] = own_requests + 1
        cells[bucket] += 1
        if tokens:
            cells[at + 2 * num] = own_tokens + tokens
            cells[bucket + num] += tokens
        return True

    def end(self, tenant: int, second: int, booked: int, actual: int) -> None:
        """Note that a request is no longer open, and what it has used.

        A correction goes where the request began, because that is when its prompt was computed;
        one that began before the last minute stays as it was.

        Args:
            tenant: whose it was.
            second: as given to `try_begin`.
            booked: tokens that it counts with so far.
            actual: tokens that it shall count with, at most 2**53.
        """
        cells = self._cells
        at = self._first + tenant
        still_open = cells[at] - 1
        assert still_open >= 0
        cells[at] = still_open
        if actual != booked and self._second - second <= WINDOW_S:
            num = self._num_tenants
            more = min(actual, _MAX_TOKENS) - booked
            cells[at + 2 * num] += more
            cells[self._bucket(second) + num + tenant] += more

    def take_back(self, tenant: int, second: int) -> None:
        """Count one request less among those of the last minute that began in `second`."""
        if self._second - second <= WINDOW_S:
            self._cells[self._first + self._num_tenants + tenant] -= 1
            self._cells[self._bucket(second) + tenant] -= 1

    def advance(self, second: int) -> None:
        """Let what is older than the last minute expire from this worker's row."""
        last = self._second
        if second <= last:
            return
        # Those before have expired already, and after `last` none has begun.
        for past in range(last - WINDOW_S, min(last + 1, second - WINDOW_S)):
            self._expire(self._bucket(past))
        self._second = self._cells[self._bucket_0 - 1] = second
        self._bucket_now = self._bucket(second)

    # Off that path.

    def totals(self, tenant: int) -> tuple[int, int, int]:
        """Return open requests, and requests and tokens of the last minute, over all workers."""
        if self._num_rows == 1:
            return self.own(tenant)
        cells, num, step = self._cells, self._num_tenants, self._row_cells
        num_open = requests = tokens = 0
        for at in range(tenant, tenant + step * self._num_rows, step):
            num_open += cells[at]
            requests += cells[at + num]
            tokens += cells[at + 2 * num]
        return num_open, requests, tokens

    def own(self, tenant: int) -> tuple[int, int, int]:
        """Return this worker's share of `totals`."""
        cells, num, at = self._cells, self._num_tenants, self._first + tenant
        return cells[at], cells[at + num], cells[at + 2 * num]

    def requests_wait_s(self, tenant: int, excess: int, now: float) -> float:
        """Return in how many seconds `excess` of the tenant's requests will have expired."""
        return self._wait_s(tenant, excess, now)

    def tokens_wait_s(self, tenant: int, excess: int, now: float) -> float:
        """Return in how many seconds `excess` of the tenant's tokens will have expired."""
        return self._wait_s(self._num_tenants + tenant, excess, now)

    def check_integrity(self) -> None:
        """Assert that this row's sums are those of its buckets, and that nothing is negative."""
        num = self._num_tenants
        for at in range(2 * num):
            values = [self._cells[bucket + at] for bucket in self._buckets()]
            assert min(values) >= 0
            assert self._cells[self._first + num + at] == sum(values)
        assert all(self._cells[self._first + tenant] >= 0 for tenant in range(num))

    def _take_over(self, row: int) -> None:
        # None of its requests is open any more, and it may have died between a bucket and its sum.
        num = self._num_tenants
        self.forget_open(self._cells, num, row)
        for at in range(2 * num):
            total = sum(self._cells[bucket + at] for bucket in self._buckets())
            self._cells[self._first + num + at] = total

    def _bucket(self, second: int) -> int:
        return self._bucket_0 + (second & _MASK) * 2 * self._num_tenants

    def _buckets(self) -> Iterator[int]:
        return (self._bucket(number) for number in range(_NUM_BUCKETS))

    def _expire(self, bucket: int) -> None:
        cells = self._cells
        sums = self._first + self._num_tenants
        for at in range(2 * self._num_tenants):
            gone = cells[bucket + at]
            if gone:
                cells[bucket + at] = 0
                cells[sums + at] -= gone

    def _wait_s(self, column: int, excess: int, now: float) -> float:
        for past in range(int(now) - WINDOW_S, int(now) + 1):
            at = self._bucket(past) - self._first + column
            for row in range(self._num_rows):
                excess -= self._cells[at + row * self._row_cells]
            if excess <= 0:
                return past + WINDOW_S + 1 - now
        return float(WINDOW_S + 1)


def _row_cells(num_tenants: int) -> int:
    return 3 * num_tenants + 1 + _NUM_BUCKETS * 2 * num_tenants


def _ceilings(limits: TenantLimits) -> tuple[int, int, int]:
    values = (limits.concurrent, limits.requests_per_minute, limits.input_tokens_per_minute)
    num_open, requests, tokens = (_UNLIMITED if each is None else each for each in values)
    return num_open, requests, tokens
