"""Any replica."""

from collections.abc import Sequence
from random import Random

from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


class RandomChoice:
    """The other baseline: blind, and without memory.

    A replica with a weight below 1 is passed over as often as its weight says.

    Args:
        rng: where chance comes from.
    """

    __slots__ = ("_rng",)

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    @property
    def name(self) -> str:
        """The name in configuration, records and receipts."""
        return "random"

    @property
    def uses_index(self) -> bool:
        """It reads `matched_tokens`."""
        return False

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002  blind by definition
        candidates: Sequence[Replica],
    ) -> Decision:
        """Choose any of `candidates`.

        Cost: O(candidates).
        """
        rng = self._rng
        open_ones = [replica for replica in candidates if replica.has_room]
        while True:
            replica = rng.choice(open_ones)
            if replica.weight >= 1.0 or rng.random() < replica.weight:
                return Decision(replica, "random", "drawn")
