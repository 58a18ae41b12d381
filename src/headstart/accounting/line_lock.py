"""One writer at a time on a log that several processes share.

A write to a file opened for appending is atomic, but one to a pipe is only up to PIPE_BUF (4 KB
on Linux), and a batch of lines is longer: without a lock, lines of two processes would mix. The
lock is a record lock on a file, which belongs to a process (a `flock` would belong to the inherited
descriptor, and so to all of them) and which the system releases when that process dies.
"""

import fcntl
import os

_BETWEEN_LINES = b"\0"
_INSIDE = b"\1"


class LineLock:
    """Taken before a write, given back when the last line of it is whole.

    Args:
        descriptor: of a file that all writers have open for reading and writing, empty at first.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_held = False

    def acquire(self) -> bool:
        """Wait for the lock, unless it is held; return whether the last writer left half a line.

        One that was killed in the middle of a write did; its line must be ended first, or the
        next one would be lost with it.
        """
        if self._is_held:
            return False
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        self._is_held = True
        was_inside = os.pread(self._descriptor, 1, 0) == _INSIDE
        os.pwrite(self._descriptor, _INSIDE, 0)
        return was_inside

    def release(self) -> None:
        """Let others write: the last line is whole."""
        os.pwrite(self._descriptor, _BETWEEN_LINES, 0)
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._is_held = False
