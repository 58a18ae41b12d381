"""What other processes have open on each replica, as they told it last.

Theory of operation: per sender and replica the last report is kept, and per replica the sum over
the senders. A report replaces the one before, so sums are exact for what was heard, whatever was
lost. What was told longer than `silence_s` ago counts no more: a sender tells everything once a
second, so one that is silent has ended, hangs, or cannot be heard.

    sender ends in order      its farewell takes its load away at once
    sender restarts           the first message of its new epoch takes its old load away
    sender dies, hangs        `silence_s` after its last message
    a report is lost          the next message about the replica, or the next snapshot
    a message comes late      its number is not above the last one: ignored
"""

from typing import Final

import msgspec

from headstart.routing.load import RemoteLoad
from headstart.wire.gossip import GossipBatch, Kind, LoadReport

DEFAULT_SILENCE_S: Final = 2.0
MAX_SENDERS: Final = 1024

NO_LOAD: Final = RemoteLoad()


class LedgerStatistics(msgspec.Struct, frozen=True):
    """What became of the messages heard so far, and who speaks now.

    Attributes:
        num_senders: processes heard within the last `silence_s`.
        num_taken: messages taken in.
        num_lost: messages that must have been sent and were never heard.
        num_late: messages left alone: heard before, overtaken, or of an earlier life.
        num_own: this process's own, come back by a peer list that names it too.
        num_refused: messages of senders above `MAX_SENDERS`.
    """

    num_senders: int
    num_taken: int
    num_lost: int
    num_late: int
    num_own: int
    num_refused: int


class _Sender:
    """One life of one process.

    Attributes:
        epoch: of this life.
        next_number: of the message to come.
        heard_at: when one was last taken in.
        reports: the last on each replica with load, and when it was told.
    """

    __slots__ = ("epoch", "heard_at", "next_number", "reports")

    def __init__(self, epoch: int, first_number: int) -> None:
        self.epoch = epoch
        self.next_number = first_number
        self.heard_at = 0.0
        self.reports: dict[bytes, tuple[LoadReport, float]] = {}


class RemoteLedger:
    """Sums up what peers tell.

    Args:
        own: this process's name, whose messages are left alone.
        silence_s: what was told longer ago counts no more, > 0.
    """

    __slots__ = (
        "_changed",
        "_loads",
        "_num_late",
        "_num_lost",
        "_num_own",
        "_num_refused",
        "_num_taken",
        "_own",
        "_senders",
        "_silence_s",
    )

    def __init__(self, own: str, silence_s: float = DEFAULT_SILENCE_S) -> None:
        self._own = own
        self._silence_s = silence_s
        self._senders: dict[str, _Sender] = {}
        self._loads: dict[bytes, RemoteLoad] = {}  # those that are not NO_LOAD
        self._changed: set[bytes] = set()
        self._num_taken = self._num_lost = self._num_late = 0
        self._num_own = self._num_refused = 0

    @property
    def senders(self) -> tuple[str, ...]:
        """Names of the processes that are heard."""
        return tuple(self._senders)

    def load(self, replica_id: bytes) -> RemoteLoad:
        """Return the sum for a replica."""
        return self._loads.get(replica_id, NO_LOAD)

    def take_changed(self) -> set[bytes]:
        """Return the replicas whose sums may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def hear(self, batch: GossipBatch, now: float) -> bool:
        """Take a message's load in; False if the whole message is to be left alone.

        Args:
            batch: as decoded.
            now: monotonic seconds.

        Cost: O(reports in it); for a snapshot O(reports before) more.
        """
        sender = self._speaker(batch)
        if sender is None:
            return False
        self._num_taken += 1
        sender.next_number = batch.number + 1
        sender.heard_at = now
        if batch.kind is not Kind.CHANGES:
            self._clear(sender)
        for report in batch.loads:
            self._replace(sender, report, now)
        return True

    def expire(self, now: float) -> list[str]:
        """Forget what was told too long ago; returns the senders that are silent since.

        Cost: O(senders × replicas).
        """
        oldest = now - self._silence_s
        silent = [name for name, sender in self._senders.items() if sender.heard_at < oldest]
        for name in silent:
            self._clear(self._senders.pop(name))
        for sender in self._senders.values():
            old = [report for report, told_at in sender.reports.values() if told_at < oldest]
            for report in old:
                self._take_away(sender, report.replica)
        return silent

    def statistics(self) -> LedgerStatistics:
        """Return what became of the messages so far."""
        return LedgerStatistics(
            num_senders=len(self._senders),
            num_taken=self._num_taken,
            num_lost=self._num_lost,
            num_late=self._num_late,
            num_own=self._num_own,
            num_refused=self._num_refused,
        )

    def check_integrity(self) -> None:
        """Assert that every sum is the sum of its reports, and that none is empty."""
        sums: dict[bytes, RemoteLoad] = {}
        for sender in self._senders.values():
            for replica_id, (report, told_at) in sender.reports.items():
                assert report.replica == replica_id
                assert not _is_empty(report)
                assert told_at <= sender.heard_at
                sums[replica_id] = _sum(sums.get(replica_id, NO_LOAD), report, 1)
        assert sums == self._loads
        assert len(self._senders) <= MAX_SENDERS

    def _speaker(self, batch: GossipBatch) -> _Sender | None:
        """Return who speaks, if this message is news of him."""
        if batch.sender == self._own:
            self._num_own += 1
            return None
        sender = self._senders.get(batch.sender)
        if sender is None and len(self._senders) >= MAX_SENDERS:
            self._num_refused += 1
            return None
        if sender is not None and batch.epoch == sender.epoch:
            if batch.number < sender.next_number:
                self._num_late += 1
                return None
            self._num_lost += batch.number - sender.next_number
            return sender
        if sender is not None:
            if batch.epoch < sender.epoch:
                self._num_late += 1
                return None
            self._clear(sender)
        # What it said before it was first heard is no loss.
        sender = self._senders[batch.sender] = _Sender(batch.epoch, batch.number)
        return sender

    def _replace(self, sender: _Sender, report: LoadReport, now: float) -> None:
        told = sender.reports.get(report.replica)
        if _is_empty(report):
            sender.reports.pop(report.replica, None)
        else:
            sender.reports[report.replica] = (report, now)
        self._change(report.replica, None if told is None else told[0], report)

    def _take_away(self, sender: _Sender, replica_id: bytes) -> None:
        self._change(replica_id, sender.reports.pop(replica_id)[0], None)

    def _clear(self, sender: _Sender) -> None:
        for replica_id in list(sender.reports):
            self._take_away(sender, replica_id)

    def _change(self, replica_id: bytes, old: LoadReport | None, new: LoadReport | None) -> None:
        """Put one report in the place of another in the sum."""
        load = self.load(replica_id)
        if old is not None:
            load = _sum(load, old, -1)
        if new is not None:
            load = _sum(load, new, 1)
        self._changed.add(replica_id)
        if load == NO_LOAD:
            self._loads.pop(replica_id, None)
        else:
            self._loads[replica_id] = load


def _sum(load: RemoteLoad, report: LoadReport, sign: int) -> RemoteLoad:
    return RemoteLoad(
        load.in_flight + sign * report.in_flight,
        load.num_pending + sign * report.num_pending,
        load.pending_tokens + sign * report.pending_tokens,
        load.active_tokens + sign * report.active_tokens,
    )


def _is_empty(report: LoadReport) -> bool:
    return not (
        report.in_flight or report.num_pending or report.pending_tokens or report.active_tokens
    )
