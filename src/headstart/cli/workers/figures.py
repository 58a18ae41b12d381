"""What all workers report, as one: the admin port's source."""

import asyncio
import time
from typing import Final

from headstart.accounting.totals import RecorderTotals, RequestTotals
from headstart.cli.workers.crew import Crew, Slot
from headstart.cli.workers.messages import Report
from headstart.engines.discovery.roster import Roster
from headstart.errors import NotFound
from headstart.gateway.merge import PastTransitions, merge_statuses
from headstart.gateway.overview import Overview, WorkerStatus
from headstart.gateway.process import process_status
from headstart.gateway.state import GatewayStatus

_ANSWER_S: Final = 0.5
"""How long all workers are waited for; of one that is late the last figures are shown."""


class Totals:
    """Sums over the workers and those before them; a `crew.CrewListener`.

    Args:
        max_series: combinations of label values before further ones count as all `other`.
    """

    def __init__(self, max_series: int) -> None:
        self.requests = RequestTotals(max_series)
        self.recorder = RecorderTotals()
        self.transitions = PastTransitions()
        self._reported_at: dict[str, float] = {}
        self._began_at = time.monotonic()

    def reported(self, name: str, report: Report) -> None:
        """Take a worker's report."""
        self._reported_at[name] = time.monotonic()
        self.requests.report(name, report.requests)
        self.recorder.report(name, report.recorder)

    def ended(self, name: str, last: Report | None) -> None:
        """Keep what a worker has counted for good."""
        self.requests.ended(name)
        self.recorder.ended(name)
        if last is not None:
            self.transitions.add(last.gateway)

    def age_s(self, name: str) -> float:
        """Return the seconds since a worker of that name has reported."""
        return time.monotonic() - self._reported_at.get(name, self._began_at)


class WorkersSource:
    """An `AdminSource` over all workers.

    Args:
        crew: the workers.
        totals: what they have reported.
        roster: the list of replicas that the crew is given.
    """

    def __init__(self, crew: Crew, totals: Totals, roster: Roster) -> None:
        self._crew = crew
        self._totals = totals
        self._roster = roster

    def roster(self) -> Roster:
        """Return the list of replicas, from which all workers take theirs."""
        return self._roster

    async def status(self) -> GatewayStatus:
        """Return the state of all workers as one."""
        await self._refresh()
        return self._merged()

    async def overview(self) -> Overview:
        """Return all figures, summed."""
        await self._refresh()
        reports = [worker.report for worker in self._crew.workers if worker.report is not None]
        return Overview(
            gateway=self._merged(),
            requests=self._totals.requests.snapshot(),
            recorder=self._totals.recorder.snapshot(),
            processes=(process_status("supervisor"), *(report.process for report in reports)),
            workers=tuple(self._worker_status(slot) for slot in self._crew.slots),
        )

    async def set_replica_draining(self, name: str, *, is_draining: bool) -> None:
        """Have every worker, also those to come, drain or resume a replica.

        Raises:
            NotFound: there is no such replica.
        """
        names = [replica.name for replica in self._roster.replicas]
        if name not in names:
            raise NotFound(f"There is no replica {name[:200]!r}; there are: {', '.join(names)}.")
        self._crew.set_replica_draining(name, is_draining=is_draining)

    async def _refresh(self) -> None:
        """Ask all workers, and wait a little; one that hangs is waited for once."""
        ready = [worker for worker in self._crew.workers if worker.is_ready.is_set()]
        answers = [worker.ask() for worker in ready if not worker.is_late]
        if answers:
            await asyncio.wait(answers, timeout=_ANSWER_S)

    def _merged(self) -> GatewayStatus:
        statuses = {
            slot.name: slot.worker.report.gateway
            for slot in self._crew.slots
            if slot.worker is not None and slot.worker.report is not None
        }
        return merge_statuses(
            statuses,
            self._roster.replicas,
            self._totals.transitions,
            is_draining=self._crew.is_draining,
        )

    def _worker_status(self, slot: Slot) -> WorkerStatus:
        return WorkerStatus(
            name=slot.name,
            is_up=slot.worker is not None and slot.worker.is_ready.is_set(),
            report_age_s=self._totals.age_s(slot.name),
            restarts=slot.restarts,
        )
