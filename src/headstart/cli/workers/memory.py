"""Integers that all workers see: connections for the shared port, use for tenants' limits.

    cells 0 .. N-1   connections that each of the N workers holds
    the rest         `accounting.tenant_counts`, one row per worker

Each worker writes its own row and reads all; there is no lock.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import BinaryIO, Final, cast

from headstart.accounting.tenant import Tenant
from headstart.accounting.tenant_counts import TenantCounts

_CELL_BYTES: Final = 8

_ABSENT: Final = 2**62
"""Connections of a worker that takes none: nobody leaves one to it."""


class SharedMemory:
    """The memory, as one process maps it.

    Args:
        descriptor: of its file, which `create_file` made.
        num_workers: as given there.
        num_tenants: as given there.
    """

    def __init__(self, descriptor: int, num_workers: int, num_tenants: int) -> None:
        self._num_workers = num_workers
        self._num_tenants = num_tenants
        size = num_bytes(num_workers, num_tenants)
        cells = memoryview(mmap.mmap(descriptor, size)).cast("q")
        self._connections = cells[:num_workers]
        self._tenant_cells = cells[num_workers:]

    def board(self, worker: int) -> "Board":
        """Return the connections as `worker` sees them."""
        return Board(self._connections, worker)

    def tenant_counts(self, tenants: Sequence[Tenant], worker: int) -> TenantCounts:
        """Return what the tenants use, as `worker` counts it; takes over what it had counted."""
        return TenantCounts(
            [tenant.limits for tenant in tenants],
            cells=self._tenant_cells,
            row=worker,
            num_rows=self._num_workers,
        )

    def clear(self, worker: int) -> None:
        """Note, from outside, that `worker` has ended: it holds no connection and no request."""
        self._connections[worker] = _ABSENT
        TenantCounts.forget_open(self._tenant_cells, self._num_tenants, worker)


class Board:
    """How many connections each worker holds; a `gateway.acceptor.ConnectionBoard`.

    Args:
        cells: one per worker.
        worker: whose to write.
    """

    __slots__ = ("_cells", "_worker")

    def __init__(self, cells: memoryview, worker: int) -> None:
        self._cells = cells
        self._worker = worker

    def publish(self, num_connections: int) -> None:
        """Tell the others."""
        self._cells[self._worker] = num_connections

    def fewest(self) -> int:
        """Return the smallest number that any worker told."""
        return min(self._cells)

    def leave(self) -> None:
        """Take no part: connections are not left to this worker."""
        self._cells[self._worker] = _ABSENT


def num_bytes(num_workers: int, num_tenants: int) -> int:
    """Return the size of the memory."""
    return num_workers * _CELL_BYTES + TenantCounts.num_bytes(num_tenants, num_workers)


def create_file(num_workers: int, num_tenants: int) -> BinaryIO:
    """Make the file behind the memory; no name leads to it, and it is gone with its last user."""
    # A file and not an anonymous mapping, because that does not survive the start of a program.
    file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115  the caller closes it
    os.ftruncate(file.fileno(), num_bytes(num_workers, num_tenants))
    return file
