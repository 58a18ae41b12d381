"""Which replicas there are, what they serve, and which may be used now."""

from collections.abc import Sequence
from itertools import count
from typing import Final

from headstart.errors import NotFound
from headstart.routing.replica import Replica, Standing

_MAX_CACHED_MODELS: Final = 256


class Fleet:
    """All replicas of one gateway; they come and go while requests run.

    A replica leaves in two steps, because requests that it was sent go on: `retire` takes it out
    of every answer, `remove` gives its slot away. Until then the slot stays its own, so that what
    its last requests teach an index is not written into another replica's bits.

    Answers are kept until a replica comes, leaves or changes its models or standing, and are then
    the same tuple for every request, so that policies can keep what they derive from it.

    Args:
        replicas: those there are at first, in the order of the configuration; names are unique.
    """

    __slots__ = ("_candidates", "_replicas", "_retired")

    def __init__(self, replicas: Sequence[Replica] = ()) -> None:
        self._replicas: tuple[Replica, ...] = ()
        self._retired: tuple[Replica, ...] = ()
        self._candidates: dict[str, tuple[Replica, ...]] = {}
        for replica in replicas:
            self.add(replica)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every replica, usable or not, but for those that are leaving."""
        return self._replicas

    def add(self, replica: Replica) -> None:
        """Take a new replica in.

        Args:
            replica: of a name that no other has, but for those that are leaving; `slot` is set to
                the smallest that is free.
        """
        assert all(replica.name != other.name for other in self._replicas)
        taken = {other.slot for other in (*self._replicas, *self._retired)}
        replica.slot = next(slot for slot in count() if slot not in taken)
        self._replicas += (replica,)
        self._candidates.clear()

    def retire(self, replica: Replica) -> None:
        """Send `replica` nothing any more; it keeps its slot."""
        assert replica in self._replicas
        self._replicas = tuple(other for other in self._replicas if other is not replica)
        self._retired += (replica,)
        self._candidates.clear()

    def restore(self, replica: Replica) -> None:
        """Undo `retire`: it is listed last."""
        assert replica in self._retired
        assert all(replica.name != other.name for other in self._replicas)
        self._retired = tuple(other for other in self._retired if other is not replica)
        self._replicas += (replica,)
        self._candidates.clear()

    def remove(self, replica: Replica) -> None:
        """Forget a retired replica, which has nothing in flight; its slot is free again."""
        assert replica in self._retired
        self._retired = tuple(other for other in self._retired if other is not replica)

    def models(self) -> list[str]:
        """Return the names of all models that some replica serves, sorted."""
        return sorted(set().union(*(replica.models for replica in self._replicas)))

    def candidates(self, model: str) -> tuple[Replica, ...]:
        """Return the replicas that may take a request for `model` now; possibly none.

        A replica whose models are not known yet may serve any. An empty `model` fits all. Where
        no replica is usable or to be tried, those of the last resort are returned.

        Raises:
            NotFound: the models of all replicas are known, and none serves it.
        """
        found = self._candidates.get(model)
        if found is None:
            found = self._find(model)
            if len(self._candidates) < _MAX_CACHED_MODELS:
                self._candidates[model] = found
        return found

    def set_standing(self, replica: Replica, standing: Standing) -> None:
        """Let `replica` be chosen, or not."""
        if replica.standing is not standing:
            replica.standing = standing
            replica.is_available = standing is Standing.USABLE
            self._candidates.clear()

    def set_models(self, replica: Replica, models: frozenset[str]) -> None:
        """Note what `replica` serves."""
        if replica.models != models:
            replica.models = models
            self._candidates.clear()

    def _find(self, model: str) -> tuple[Replica, ...]:
        serving = [
            replica
            for replica in self._replicas
            if not model or not replica.models or model in replica.models
        ]
        if not serving and self._replicas:
            served = ", ".join(self.models())
            raise NotFound(
                f"No engine serves the model {model[:200]!r}. Served: {served}.", param="model"
            )
        first = (Standing.USABLE, Standing.TRIAL)
        return tuple(replica for replica in serving if replica.standing in first) or tuple(
            replica for replica in serving if replica.standing is Standing.LAST_RESORT
        )

    def check_integrity(self) -> None:
        """Assert that names and slots are unique and that no answer is out of date."""
        everyone = (*self._replicas, *self._retired)
        assert len({id(replica) for replica in everyone}) == len(everyone)
        assert len({replica.slot for replica in everyone}) == len(everyone)
        assert len({replica.name for replica in self._replicas}) == len(self._replicas)
        for model, found in self._candidates.items():
            assert found == self._find(model)
